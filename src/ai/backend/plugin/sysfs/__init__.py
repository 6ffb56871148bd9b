"""Supports plugins that read sysfs without a vendor library: PCI topology, whole devices, recordings.

:class:`TreePlugin` is the base of ``rocm`` and of every family of the plugin ``sysfs``.
"""

from ai.backend.plugin.sysfs.base import Raw, ScannedDevice, TreePlugin, TreeSettings
from ai.backend.plugin.sysfs.tree import Missing, RecordingTree, Tree, Unreadable, unpack

__all__ = [
    "Missing", "Raw", "RecordingTree", "ScannedDevice", "Tree", "TreePlugin", "TreeSettings", "Unreadable", "unpack",
]  # fmt: skip
