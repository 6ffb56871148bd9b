"""Audit trail and reported errors."""
