"""Support for plugins that read sysfs without a vendor library: PCI topology, whole devices, recordings.

:class:`TreePlugin` is the base of ``rocm`` and of every family of the plugin ``sysfs``.
"""

from ai.backend.plugin.sysfs.base import ScannedDevice, TreePlugin, TreeSettings
from ai.backend.plugin.sysfs.measures import Raw
from ai.backend.plugin.sysfs.recording import RecordingTree, unpack
from ai.backend.plugin.sysfs.tree import Missing, Tree, Unreadable

__all__ = [
    "Missing",
    "Raw",
    "RecordingTree",
    "ScannedDevice",
    "Tree",
    "TreePlugin",
    "TreeSettings",
    "Unreadable",
    "unpack",
]
