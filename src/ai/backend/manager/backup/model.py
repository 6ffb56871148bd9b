"""Defines the parts of a backup file."""

from __future__ import annotations

import msgspec

FORMAT = 1


class KeyDerivation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describes how the key of the sealed part of a backup is derived from a secret.

    It is derived from a passphrase and ``salt`` by scrypt, or from the key ``key_id`` of a key file.
    """

    salt: bytes = b""
    key_id: str = ""


class BackupHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the part of a backup that is not sealed and that everybody may read: format, version, time, and database.

    ``database`` is the kind of the database, ``revision`` that of its schema.
    """

    format: int
    version: str
    created_at: str
    database: str
    revision: str
    key: KeyDerivation


class ConfigEntry(msgspec.Struct, frozen=True):
    """Holds a value of the shared configuration; ``scope`` is the kind and the name of its scope."""

    scope: tuple[str, str]
    key: str
    value: str


class SealedPart(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the secrets of a backup, and the digest of the copy of the database.

    ``files`` are keys and certificates by their role, ``settings`` is the text of ``manager.toml`` or empty.
    """

    database_sha256: str
    database_bytes: int
    files: dict[str, bytes]
    settings: str
    configuration: list[ConfigEntry]
