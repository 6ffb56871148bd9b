"""Reads the version of the installed program."""

from __future__ import annotations

from importlib import metadata

_DISTRIBUTIONS = ("backendai", "backendai-slim")


def release_version() -> str:
    """Returns the version of the distribution that has these files: the whole, or the one with requirements by part.

    Raises PackageNotFoundError where neither is installed.
    """
    for name in _DISTRIBUTIONS[:-1]:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return metadata.version(_DISTRIBUTIONS[-1])
