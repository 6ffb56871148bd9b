"""The ``vfs`` backend: a volume in any directory of any file system."""

from ai.backend.volume.vfs.volume import VfsVolume

__all__ = ["VfsVolume"]
