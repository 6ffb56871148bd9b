"""`backend.ai service`."""
