"""Manages login sessions of browsers and of clients in session mode."""
