"""For plugins that read sysfs and need no vendor library: careful reading, PCI topology, whole devices, recordings.

:class:`TreePlugin` is the base of ``rocm`` and of every family of the plugin ``sysfs``.
"""

from ai.backend.plugin.sysfs.base import Found, TreePlugin, TreeSettings
from ai.backend.plugin.sysfs.measures import Raw
from ai.backend.plugin.sysfs.recording import RecordingTree, unpack
from ai.backend.plugin.sysfs.tree import Missing, Tree, Unreadable

__all__ = ["Found", "Missing", "Raw", "RecordingTree", "Tree", "TreePlugin", "TreeSettings", "Unreadable", "unpack"]
