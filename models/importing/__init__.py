"""Importing weights: state dicts for our architectures, and exported programs for any other network."""
