"""Replay: a token says all that the bits of an answer depend on, so that the same samples can be asked for again."""
