"""Programs: functions imported as data, as lists of ATen operations."""

PROGRAM = "program"
"""The architecture of imported programs; a service serves them only if a setting allows it."""
