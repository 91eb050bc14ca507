"""The service compared with a plain one: FastAPI and torchdiffeq, one solve per request in a thread pool."""
