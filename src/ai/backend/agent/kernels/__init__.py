"""Manages kernels, their durable records, and the outbox of observations."""
