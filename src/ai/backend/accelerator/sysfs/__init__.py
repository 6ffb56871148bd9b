"""Serves accelerators that a data file describes: how sysfs shows them, and what a workload needs to use them."""

from ai.backend.accelerator.sysfs.plugin import SysfsPlugin

__all__ = ["SysfsPlugin"]
