"""Folders and files for the manager."""
