"""Networks imported as data: programs of ATen operations."""
