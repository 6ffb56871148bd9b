"""Chooses agents for kernels."""
