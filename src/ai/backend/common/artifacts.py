"""Defines the vocabulary of artifacts: models, packages and images from registries (spec 03-17)."""

from __future__ import annotations

from enum import StrEnum

REFERENCE_PREFIX = "artifact:"
"""What a mount begins with that means an artifact: ``artifact:NAME[@VERSION]``."""


class ArtifactType(StrEnum):
    MODEL = "MODEL"
    PACKAGE = "PACKAGE"
    IMAGE = "IMAGE"


class RegistryType(StrEnum):
    """The kind of an artifact registry. ``reservoir``: another installation. ``local``: files that users upload."""

    HUGGINGFACE = "huggingface"
    RESERVOIR = "reservoir"
    LOCAL = "local"


class RevisionStatus(StrEnum):
    """The status of an artifact's revision on its way from the registry into this installation."""

    SCANNED = "SCANNED"
    PULLING = "PULLING"
    PULLED = "PULLED"
    AVAILABLE = "AVAILABLE"
