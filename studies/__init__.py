"""Benchmarks, side by side with other software where there is any; each part prints tables."""
