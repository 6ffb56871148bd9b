"""Kernels, their durable records, and the outbox of observations."""
