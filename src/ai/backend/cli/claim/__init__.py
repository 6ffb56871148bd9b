"""`backend.ai claim`."""
