"""Settings of the storage proxy."""
