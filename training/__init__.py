"""Offline training of flow-matching models: data, paths, loss, trainer, evaluation.

`python -m training fit NAME` trains one model and publishes it; `python -m training defaults` makes the default models
that the repository lacks.
"""
