"""Tus uploads, downloads, tokens."""
