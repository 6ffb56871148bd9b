"""Implements the embedded data plane by asyncio, in the process of the worker."""
