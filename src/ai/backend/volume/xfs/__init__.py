"""A volume on xfs, which enforces the limits of quota scopes itself."""

from ai.backend.volume.xfs.volume import XfsVolume

__all__ = ["XfsVolume"]
