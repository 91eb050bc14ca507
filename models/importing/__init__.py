"""Turning other people's weights into checkpoints: state dicts for our architectures, exported programs for others."""
