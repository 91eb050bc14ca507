"""The service beside a plain one: FastAPI and torchdiffeq, a solve for each request in a thread pool."""
