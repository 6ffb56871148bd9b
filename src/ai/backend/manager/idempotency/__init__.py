"""Answers kept by client token."""
