"""The parts of a backup file."""

from __future__ import annotations

import msgspec

FORMAT = 1


class KeyDerivation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the key of the sealed part is made: from a passphrase and ``salt`` by scrypt, or from the key ``key_id`` of a
    key file."""

    salt: bytes = b""
    key_id: str = ""


class BackupHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a backup that everybody may read. ``database`` is its kind, ``revision`` that of its schema."""

    format: int
    version: str
    created_at: str
    database: str
    revision: str
    key: KeyDerivation


class ConfigEntry(msgspec.Struct, frozen=True):
    """A value of the shared configuration; ``scope`` is the kind and the name of its scope."""

    scope: tuple[str, str]
    key: str
    value: str


class SealedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of a backup, and the digest of the database that belongs to them.

    ``files`` are keys and certificates by their role, ``settings`` is the text of ``manager.toml`` or empty.
    """

    database_sha256: str
    database_bytes: int
    files: dict[str, bytes]
    settings: str
    configuration: list[ConfigEntry]
