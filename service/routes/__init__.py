"""The routes of the service, one subject per file."""
