"""Manages virtual folders: access, lifecycle, files, shares, quotas, and mounts in sessions."""
