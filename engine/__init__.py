"""The engine: requests become jobs, a job's samples become lanes, and lanes of one operation share network calls."""
