"""Measurements side by side with other software; each part prints a table and writes to reports/."""
