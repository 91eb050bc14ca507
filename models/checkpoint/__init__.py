"""Checkpoints: folders of weights and a card, saved, loaded and verified."""
