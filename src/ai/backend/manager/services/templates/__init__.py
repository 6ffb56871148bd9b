"""Session templates and cluster templates."""
