"""Serves folders and files on volumes to the manager."""
