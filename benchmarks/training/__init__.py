"""Where the time of a training goes."""
