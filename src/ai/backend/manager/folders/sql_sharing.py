"""Sql sharing of folders."""

from __future__ import annotations

from dataclasses import fields

from ai.backend.manager.folders.model import Invitation

_INVITATION_FIELDS = tuple(f.name for f in fields(Invitation) if f.name != "folder_name")
