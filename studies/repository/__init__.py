"""Benchmarks of swapping models under load, and of the Open Inference Protocol."""
