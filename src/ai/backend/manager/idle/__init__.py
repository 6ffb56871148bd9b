"""Ends sessions that are idle or too old."""
