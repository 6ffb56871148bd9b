"""The slot ``cpu``: cores of the node."""

from ai.backend.accelerator.intrinsic import CPUPlugin

__all__ = ["CPUPlugin"]
