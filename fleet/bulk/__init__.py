"""Bulk jobs: samples of one model as files, made by any number of workers, the same rows whatever happens on the way.

A job is a `JobSpec`. Its rows are cut into shards, each a pure function of the spec. A worker makes a shard, writes it
under a temporary name, moves it into place, and leaves a receipt; a shard with a receipt is done. Nothing else is
remembered, so a job goes on after any crash by making the shards without one.
"""
