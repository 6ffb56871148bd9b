"""SQL store."""
