"""Loops and reports that change the status of sessions."""
