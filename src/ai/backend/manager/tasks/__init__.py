"""Background tasks."""
