"""The model registry: versions on disk, loaded, leased."""
