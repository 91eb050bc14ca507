"""Velocity fields and what is stored of them: architectures, noise, decoders, checkpoints, the repository."""
