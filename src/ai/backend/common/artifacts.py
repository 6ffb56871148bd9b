"""Artifacts: models, packages and images that come from registries (spec 03-17)."""

from __future__ import annotations

from enum import StrEnum

REFERENCE = "artifact:"
"""What a mount begins with that means an artifact: ``artifact:NAME[@VERSION]``."""


class ArtifactType(StrEnum):
    MODEL = "MODEL"
    PACKAGE = "PACKAGE"
    IMAGE = "IMAGE"


class RegistryType(StrEnum):
    """``reservoir`` is another installation of this platform; ``local`` has what was uploaded here."""

    HUGGINGFACE = "huggingface"
    RESERVOIR = "reservoir"
    LOCAL = "local"


class RevisionStatus(StrEnum):
    """How far the files of a revision are on their way here."""

    SCANNED = "SCANNED"
    PULLING = "PULLING"
    PULLED = "PULLED"
    AVAILABLE = "AVAILABLE"
