"""Session and cluster templates."""
