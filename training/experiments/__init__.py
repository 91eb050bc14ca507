"""Every result of the paper, one experiment a file; `python -m training reproduce` runs them."""
