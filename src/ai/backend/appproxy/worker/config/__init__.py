"""Settings of the worker."""
