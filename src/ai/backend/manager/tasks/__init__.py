"""Runs background tasks and reports their progress."""
