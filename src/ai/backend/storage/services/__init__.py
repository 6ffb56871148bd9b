"""What the storage proxy does."""
