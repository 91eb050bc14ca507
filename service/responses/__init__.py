"""Responses: the result of a job as JSON, npz, npy or PNG."""
