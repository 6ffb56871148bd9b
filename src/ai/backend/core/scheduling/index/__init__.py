"""Indexes agents by their free resources."""
