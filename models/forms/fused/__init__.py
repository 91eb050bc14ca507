"""Fused networks: one compiled call for a CPU, with the torch module as the reference; one file an architecture."""
