"""The slot ``rocm.device``: AMD's GPUs."""

from ai.backend.accelerator.rocm.plugin import RocmPlugin

__all__ = ["RocmPlugin"]
