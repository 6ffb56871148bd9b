"""The ``xfs`` backend: a volume on xfs, which enforces the limits of quota scopes."""

from ai.backend.volume.xfs.volume import XfsVolume

__all__ = ["XfsVolume"]
