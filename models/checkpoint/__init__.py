"""Checkpoints: a folder of weights and a card, saved, loaded and verified."""
