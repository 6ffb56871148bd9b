"""Volumes, backends, quotas."""
