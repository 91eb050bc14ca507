"""Velocity fields and their storage: architectures, noise, decoders, checkpoints, the repository."""
