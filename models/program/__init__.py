"""Programs: networks imported as data, as lists of ATen operations."""
