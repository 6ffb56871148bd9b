"""Manages workers, which are processes that serve apps to browsers and programs."""
