"""Runs code, transfers files, opens terminals and makes commits in running sessions."""
