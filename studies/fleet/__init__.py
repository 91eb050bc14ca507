"""Benchmarks past one machine: overhead of balancers, and scaling of bulk jobs."""
