"""Profile of a training run: where its time goes."""
