"""Acquire and release, a file each."""
