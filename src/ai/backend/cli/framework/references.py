"""Finds the object that a shortened id means."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import click

_SHORT_ID_PATTERN = r"(?!.{32})[0-9a-fA-F]{4}[0-9a-fA-F-]*"
_SHOWN_MATCHES = 10

Rows = Sequence[Mapping[str, Any]]


def is_short_id(reference: str) -> bool:
    """True if a text may be the beginning of a UUID: at least four hexadecimal digits, and not a whole UUID."""
    return re.fullmatch(_SHORT_ID_PATTERN, reference) is not None


def find_id(reference: str, rows: Rows, *, kind: str, name_key: str = "name") -> str:
    """Returns the id of the object that ``reference`` means, where ``reference`` is a name, an id or its beginning.

    ``reference`` itself is returned if it is a name or matches nothing.

    Raises click.ClickException if several ids begin with it; the message names them.
    """
    if any(row.get(name_key) == reference for row in rows):
        return reference
    matches = {
        str(row["id"]): row.get(name_key)
        for row in rows
        if _digits_of(str(row["id"])).startswith(_digits_of(reference))
    }
    if len(matches) > 1:
        match_texts = [
            f"{object_name} ({full_id})" if object_name else full_id for full_id, object_name in matches.items()
        ]
        rest_text = f" and {len(match_texts) - _SHOWN_MATCHES} more" if len(match_texts) > _SHOWN_MATCHES else ""
        raise click.ClickException(
            f"{reference} is the beginning of several {kind} ids: {', '.join(match_texts[:_SHOWN_MATCHES])}{rest_text}"
        )
    return next(iter(matches), reference)


async def resolve(reference: str, load: Callable[[], Awaitable[Rows]], *, kind: str, name_key: str = "name") -> str:
    """Returns the id that a short id stands for; returns any other reference without calling ``load``."""
    return find_id(reference, await load(), kind=kind, name_key=name_key) if is_short_id(reference) else reference


def _digits_of(short_id: str) -> str:
    return short_id.replace("-", "").lower()
