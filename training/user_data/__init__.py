"""User data: vectors or images, read and checked; each error names the file and the place in it."""
