"""Pulls and image jobs."""
