"""The engine: requests become jobs, a job's samples become lanes, and all lanes of a model share one network call."""
