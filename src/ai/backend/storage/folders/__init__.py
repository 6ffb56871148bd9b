"""Folders and files on volumes, for the manager."""
