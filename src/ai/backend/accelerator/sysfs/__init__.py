"""Accelerators that a data file describes: what sysfs says of them, and what a workload needs to use them."""

from ai.backend.accelerator.sysfs.plugin import SysfsPlugin

__all__ = ["SysfsPlugin"]
