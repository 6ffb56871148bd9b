"""Artifacts, registries, imports."""
