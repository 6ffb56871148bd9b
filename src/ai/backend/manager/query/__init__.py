"""Parses and applies filters, orders and pages of lists, in SQL and in memory."""
