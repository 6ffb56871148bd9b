"""Retention, sealing again."""
