"""Volume backends of the storage proxy."""
