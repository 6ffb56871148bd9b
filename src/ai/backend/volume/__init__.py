"""Volumes of the storage proxy."""
