"""Runs the storage proxy, which serves folders on volumes, file transfers and artifacts."""
