"""The slot ``cpu``: cores of the node."""

from ai.backend.accelerator.cpu.plugin import CPUPlugin

__all__ = ["CPUPlugin"]
