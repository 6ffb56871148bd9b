"""The slot ``mem``: main memory of the node."""

from ai.backend.accelerator.mem.plugin import MemoryPlugin

__all__ = ["MemoryPlugin"]
