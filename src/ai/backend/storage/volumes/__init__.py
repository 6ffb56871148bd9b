"""Volumes, their backends and quota scopes."""
