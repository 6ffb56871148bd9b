"""Data directory, journal, record base."""
