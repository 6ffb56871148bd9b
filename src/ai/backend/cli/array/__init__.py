"""`backend.ai submit` and `backend.ai array`."""
