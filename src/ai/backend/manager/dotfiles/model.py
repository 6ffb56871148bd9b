"""Dotfiles: small files that the platform puts into the home directory of every new session (spec 03-11)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ai.backend.common.errors import Conflict, LimitExceeded, NotFound

MAX_DOTFILES = 100
"""Of one owner."""
MAX_DOTFILE_BYTES = 65_536
"""Contents of all dotfiles of one owner together, in bytes of UTF-8."""


class DotfileScope(StrEnum):
    """Whose sessions get a dotfile; of equal paths the last of these scopes wins."""

    DOMAIN = "domain"
    GROUP = "group"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class DotfileOwner:
    """``name`` is the domain's name, the group's id as text, or an access key: a user's dotfiles belong to a
    keypair."""

    scope: DotfileScope
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dotfile:
    """``path`` is relative to the home directory; ``permission`` is octal text such as ``755``."""

    path: str
    permission: str
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFiles:
    """What every kernel of a session is made with; ``ssh_public_key`` opens it."""

    dotfiles: tuple[Dotfile, ...] = ()
    ssh_public_key: str | None = None


def merged(dotfiles: Iterable[tuple[DotfileScope, Dotfile]]) -> tuple[Dotfile, ...]:
    """One file for each path, the narrowest scope's, in the order of their paths. Where one scope has a file at what is
    a directory in another, what is below it is left out."""
    rank = {scope: i for i, scope in enumerate(DotfileScope)}
    found: dict[str, Dotfile] = {}
    for _, dotfile in sorted(dotfiles, key=lambda item: rank[item[0]]):
        found[dotfile.path] = dotfile
    kept: list[Dotfile] = []
    for path in sorted(found):
        parts = path.split("/")
        if not any("/".join(parts[:i]) in found for i in range(1, len(parts))):
            kept.append(found[path])
    return tuple(kept)


def with_dotfile(kept: Iterable[Dotfile], dotfile: Dotfile, *, is_new: bool) -> list[Dotfile]:
    """What an owner has once this dotfile is added, or has replaced the one of its path; in the order of paths.

    Raises:
        Conflict: there is one already and it is to be new, or a path would be both a file and a directory.
        NotFound: there is none to replace.
        LimitExceeded: too many, or too large together.
    """
    others = {kept_one.path: kept_one for kept_one in kept}
    before = others.pop(dotfile.path, None)
    if is_new and before is not None:
        raise Conflict(f"There is a dotfile {dotfile.path!r} already.", data={"path": "taken"})
    if not is_new and before is None:
        raise NotFound(f"There is no dotfile {dotfile.path!r}.", data={"path": "unknown"})
    for path in others:
        if path.startswith(dotfile.path + "/") or dotfile.path.startswith(path + "/"):
            raise Conflict(f"{dotfile.path!r} and the dotfile {path!r} cannot both be there.", data={"path": "taken"})
    found = {**others, dotfile.path: dotfile}
    if len(found) > MAX_DOTFILES:
        raise LimitExceeded(f"At most {MAX_DOTFILES} dotfiles are kept.", data={"path": "too many"})
    if sum(len(one.data.encode()) for one in found.values()) > MAX_DOTFILE_BYTES:
        raise LimitExceeded(f"Dotfiles have {MAX_DOTFILE_BYTES} bytes together at most.", data={"data": "too large"})
    return [found[path] for path in sorted(found)]
