"""Data connections."""
