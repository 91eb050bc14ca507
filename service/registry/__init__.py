"""The model registry: model versions on disk, in memory and on lease."""
