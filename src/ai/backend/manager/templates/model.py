"""Defines session and cluster templates (spec 03-01 "Session templates", 03-11)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from ai.backend.common.ids import DomainName, GroupId, TemplateId, UserId


class TemplateKind(StrEnum):
    """Names the kinds of templates; cluster templates refer to session templates."""

    SESSION = "session"
    CLUSTER = "cluster"


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a template of a user.

    ``document`` is the template as its author wrote it, read by :mod:`ai.backend.manager.templates.syntax`;
    ``group_id`` is the project of its sessions if the request names none.
    """

    id: TemplateId
    kind: TemplateKind
    name: str
    domain_name: DomainName
    group_id: GroupId
    group_name: str
    user_id: UserId
    user_email: str
    document: Mapping[str, Any]
    created_at: datetime
    modified_at: datetime
