"""Filters, orders, pages; their language; in SQL and in memory."""
