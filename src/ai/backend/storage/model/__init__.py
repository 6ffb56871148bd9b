"""Values of the storage proxy."""
