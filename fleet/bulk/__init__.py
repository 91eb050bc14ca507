"""Bulk jobs: any number of workers write samples of one model to files; crashes and restarts never change the rows.

A job is a `JobSpec`. Its rows are split into shards, each a pure function of the spec. A worker makes a shard, writes
it under a temporary name, moves it into place, and writes a receipt; a shard with a receipt is done. There is no other
state, so a job resumes after any crash by making the shards without a receipt.
"""
