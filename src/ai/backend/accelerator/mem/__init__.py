"""The slot ``mem``: main memory of the node."""

from ai.backend.accelerator.intrinsic import MemoryPlugin

__all__ = ["MemoryPlugin"]
