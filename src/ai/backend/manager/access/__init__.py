"""Describes the callers of the manager, and the permissions of their roles."""
