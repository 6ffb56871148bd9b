"""A made-up vendor's plugin, written against version 1 of the interface only."""

__version__ = "1.2"
