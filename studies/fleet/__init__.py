"""Benchmarks of the fleet: scaling of bulk jobs."""
