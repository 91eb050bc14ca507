"""Data of your own: rows of numbers, or pictures, read and checked; each error names the file and the place in it."""
