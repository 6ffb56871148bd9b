"""Reads the version of the installed program."""

from __future__ import annotations

from importlib import metadata

_DISTRIBUTIONS = ("backendai", "backendai-slim")


def release_version() -> str:
    """Returns the version of the installed distribution that contains this program.

    It is the distribution of the whole platform, or the one with the requirements of one part.

    Raises PackageNotFoundError where neither is installed.
    """
    for name in _DISTRIBUTIONS[:-1]:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return metadata.version(_DISTRIBUTIONS[-1])
