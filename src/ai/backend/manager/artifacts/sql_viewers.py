"""Builds the SQL condition on the artifacts that a user may use, and finds the ids of viewers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Text, and_, func, or_, select, type_coerce

from ai.backend.common.errors import Conflict, NotFound
from ai.backend.manager.artifacts.model import EVERYONE, Viewer
from ai.backend.manager.artifacts.tables import artifacts, registries
from ai.backend.manager.identity.tables import groups, memberships, users


def has_viewer(column: Column[Any], viewers: Sequence[str]) -> ColumnElement[bool]:
    """Returns the SQL condition that a JSON list of viewers contains at least one of ``viewers``.

    Upper and lower case differ. The condition does not use ``LIKE``, which ignores case on SQLite.
    """
    viewers_text = type_coerce(column, Text)
    return or_(
        *(func.replace(viewers_text, msgspec.json.encode(viewer).decode(), "") != viewers_text for viewer in viewers)
    )


def names_of(s: Connection, viewer: Viewer) -> list[str]:
    """Returns the entries in lists of viewers that include a user: everyone, the user's domain, the user, and groups.

    Only active groups count.
    """
    is_member = and_(memberships.c.user_id == viewer.user_id, groups.c.is_active)
    group_ids = s.execute(select(groups.c.id).join(memberships).where(is_member)).scalars()
    user_names = [EVERYONE, f"domain:{viewer.domain_name}", f"user:{viewer.user_id}"]
    return user_names + [f"group:{group_id}" for group_id in group_ids]


def is_open_to(s: Connection, viewer: Viewer) -> ColumnElement[bool]:
    """Returns the SQL condition that selects the artifacts that a user may use, by the rule of :func:`viewers_of`."""
    names = names_of(s, viewer)
    inherits_viewers = and_(artifacts.c.viewers.is_(None), artifacts.c.restricted.is_(False))
    return or_(has_viewer(artifacts.c.viewers, names), and_(inherits_viewers, has_viewer(registries.c.viewers, names)))


def viewer_id(s: Connection, viewer: str) -> str:
    """Replaces the name of a group or the address of a user in an entry of a list of viewers by the id.

    Raises NotFound, Conflict.
    """
    kind, _, name = viewer.partition(":")
    if kind not in ("group", "user"):
        return viewer
    viewer_table, condition = (groups, groups.c.name == name) if kind == "group" else (users, users.c.email == name)
    id_column = viewer_table.c.id if kind == "group" else viewer_table.c.uuid
    with suppress(ValueError):
        condition = id_column == UUID(name)
    ids = s.execute(select(id_column).where(condition)).scalars().all()
    if not ids:
        raise NotFound(f"There is no {kind} {name[:256]!r}.", data={"viewers": "unknown"})
    if len(ids) > 1:
        raise Conflict(f"Several groups are called {name[:256]!r}: use an id.", data={"matches": list(map(str, ids))})
    return f"{kind}:{ids[0]}"
