"""Defines dotfiles, small files that the platform puts into the home directory of every new session (spec 03-11)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from ai.backend.common.errors import Conflict, LimitExceeded, NotFound

MAX_DOTFILES = 100
"""The maximum number of dotfiles of one owner."""
MAX_DOTFILE_BYTES = 65_536
"""The maximum size in bytes of UTF-8 of the contents of all dotfiles of one owner together."""


class DotfileScope(StrEnum):
    """Names the kind of the owner of a dotfile.

    If several owners have a dotfile of the same path, the dotfile of the last of these kinds is used.
    """

    DOMAIN = "domain"
    GROUP = "group"
    USER = "user"


class DotfileOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies an owner of dotfiles. ``name`` is the name of a domain, the id of a group as text, or
    an access key.
    """

    scope: DotfileScope
    name: str


class Dotfile(msgspec.Struct, frozen=True, kw_only=True):
    """A dotfile. ``path`` is relative to the home directory; ``permission`` is octal text such as ``755``."""

    path: str
    permission: str
    data: str


class InjectedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the files with which every kernel of a session is created; ``ssh_public_key`` opens the session."""

    dotfiles: tuple[Dotfile, ...] = ()
    ssh_public_key: str | None = None


def merge_dotfiles(dotfiles: Iterable[tuple[DotfileScope, Dotfile]]) -> tuple[Dotfile, ...]:
    """Returns one dotfile for each path, by path; the dotfile of the narrowest scope takes precedence. Paths below
    another file are left out.
    """
    rank_of_scope = {scope: position for position, scope in enumerate(DotfileScope)}
    dotfiles_by_path = {
        dotfile.path: dotfile for _, dotfile in sorted(dotfiles, key=lambda item: rank_of_scope[item[0]])
    }
    return tuple(
        dotfiles_by_path[path]
        for path in sorted(dotfiles_by_path)
        if dotfiles_by_path.keys().isdisjoint(_parent_paths(path))
    )


def _parent_paths(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:part_count]) for part_count in range(1, len(parts))]


def add_or_replace_dotfile(stored_dotfiles: Iterable[Dotfile], dotfile: Dotfile, *, is_new: bool) -> list[Dotfile]:
    """Returns the dotfiles of an owner with ``dotfile`` added or replaced, sorted by path.

    Raises:
        Conflict: a new one has the path of another, or a path would be both a file and a directory.
        NotFound: there is no dotfile to replace.
        LimitExceeded: too many, or too large together.
    """
    dotfiles_by_path = {stored_dotfile.path: stored_dotfile for stored_dotfile in stored_dotfiles}
    old_dotfile = dotfiles_by_path.pop(dotfile.path, None)
    if is_new and old_dotfile is not None:
        raise Conflict(f"There is a dotfile {dotfile.path!r} already.", data={"path": "taken"})
    if not is_new and old_dotfile is None:
        raise NotFound(f"There is no dotfile {dotfile.path!r}.", data={"path": "unknown"})
    for path in dotfiles_by_path:
        if path.startswith(dotfile.path + "/") or dotfile.path.startswith(path + "/"):
            raise Conflict(f"{dotfile.path!r} and the dotfile {path!r} cannot both be there.", data={"path": "taken"})
    new_dotfiles_by_path = {**dotfiles_by_path, dotfile.path: dotfile}
    if len(new_dotfiles_by_path) > MAX_DOTFILES:
        raise LimitExceeded(f"At most {MAX_DOTFILES} dotfiles are allowed.", data={"path": "too many"})
    if sum(len(stored_dotfile.data.encode()) for stored_dotfile in new_dotfiles_by_path.values()) > MAX_DOTFILE_BYTES:
        raise LimitExceeded(f"Dotfiles have {MAX_DOTFILE_BYTES} bytes together at most.", data={"data": "too large"})
    return [new_dotfiles_by_path[path] for path in sorted(new_dotfiles_by_path)]
