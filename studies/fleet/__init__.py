"""Benchmarks past one machine: overhead of balancers, scaling of bulk jobs, and accuracy of capacity plans."""
