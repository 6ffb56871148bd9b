"""Filters, orders and pages of lists: their language, in SQL and in memory."""
