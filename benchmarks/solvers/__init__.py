"""The solvers beside torchdiffeq, torchode and SciPy: work against precision, overhead, rows and ticks."""
