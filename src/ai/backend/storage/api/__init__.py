"""The HTTP APIs of the storage proxy."""
