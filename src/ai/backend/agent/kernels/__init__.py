"""A kernel's record and what is alive of it."""
