"""HTTP workers: processes that take requests for the engine's process, so that Python of HTTP is not in its way."""
