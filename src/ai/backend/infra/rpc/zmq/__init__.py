"""Implements the link on ZeroMQ."""
