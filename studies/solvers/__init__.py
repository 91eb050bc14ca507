"""The solvers compared with torchdiffeq, torchode and SciPy: work against precision, overhead, rows and ticks."""
