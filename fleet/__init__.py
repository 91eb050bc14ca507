"""Scaling past one machine: bulk jobs, and replicas on Ray Serve; a layer above `service`.

A bulk job is a `JobSpec`. Its rows are split into shards, each a pure function of the spec. A worker makes a shard,
writes it under a temporary name, moves it into place, and writes a receipt; a shard with a receipt is done. There is no
other state, so a job resumes after any crash by making the shards without a receipt, and any number of workers, crashes
and restarts never change the rows.

The service never imports this package, and importing it does not import Ray.
"""
