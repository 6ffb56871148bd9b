"""Serves volumes with their backends and quota scopes."""
