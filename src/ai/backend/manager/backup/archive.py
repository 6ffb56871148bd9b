"""Reads and writes backup files: a ZIP of the head, the copy of the database, and the sealed part.

The sealed part is encrypted with AES-256-GCM, and authenticates the head and, by its digest, the copy of the database.
The copy itself has no secrets but those that the installation's own keys seal, which are in the sealed part.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput
from ai.backend.manager.backup.model import FORMAT, BackupHead, KeyDerivation, SealedPart
from ai.backend.manager.secrets.sealer import SealingKey, read_keys

_HEAD, _DATABASE, _SEALED = "backup.json", "database", "sealed"
_NONCE_BYTES, _SALT_BYTES = 12, 16
_SCRYPT_WORK, _SCRYPT_BLOCKS, _SCRYPT_LANES = 1 << 17, 8, 1
"""Costs of scrypt: 128 MiB and less than a second. They belong to the format: a file cannot demand more."""
MIN_PASSPHRASE_CHARACTERS = 12
_MAX_SEALED_BYTES = 1 << 30
_MAX_HEAD_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20
_COMPRESSION_LEVEL = 1


class Passphrase:
    """Opens and seals backups with a passphrase. Raises InvalidInput if it is too short."""

    def __init__(self, text: str) -> None:
        if len(text) < MIN_PASSPHRASE_CHARACTERS:
            raise InvalidInput(f"a passphrase has at least {MIN_PASSPHRASE_CHARACTERS} characters")
        self._text = text

    def new_derivation(self) -> KeyDerivation:
        return KeyDerivation(salt=os.urandom(_SALT_BYTES))

    def derive(self, derivation: KeyDerivation) -> bytes:
        """Returns the key of a backup. Raises InvalidInput if it was sealed with a key file."""
        if not derivation.salt:
            raise InvalidInput(f"the backup was sealed with the key {derivation.key_id} of a file: give --key-file")
        kdf = Scrypt(salt=derivation.salt, length=32, n=_SCRYPT_WORK, r=_SCRYPT_BLOCKS, p=_SCRYPT_LANES)
        return kdf.derive(self._text.encode())


class KeyFile:
    """Opens backups with any key of a file, as of ``mgr secrets``, and seals them with its first. Raises as
    :func:`~ai.backend.manager.secrets.sealer.read_keys`."""

    def __init__(self, path: Path) -> None:
        self._keys: dict[str, SealingKey] = {key.id: key for key in read_keys(path)}
        self._path = path

    def new_derivation(self) -> KeyDerivation:
        return KeyDerivation(salt=b"", key_id=next(iter(self._keys)))

    def derive(self, derivation: KeyDerivation) -> bytes:
        """Returns the key of a backup. Raises InvalidInput if the file does not have it."""
        if derivation.key_id not in self._keys:
            how = f"the key {derivation.key_id}" if derivation.key_id else "a passphrase"
            raise InvalidInput(f"the backup was sealed with {how}, which {self._path} does not have")
        return self._keys[derivation.key_id].derive(b"backup")


class Secret(Protocol):
    """A passphrase or key that seals and opens backups."""

    def new_derivation(self) -> KeyDerivation: ...
    def derive(self, derivation: KeyDerivation) -> bytes:
        """Returns the 32 bytes of the key of a backup. Raises InvalidInput if it was sealed with something else."""


class _Measured:
    """Passes bytes on to a stream, and counts and hashes them."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        self._sha256.update(data)
        self.size += len(data)
        return self._stream.write(data)

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        data = self._stream.read(size)
        self._sha256.update(data)
        self.size += len(data)
        return data

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()


class BackupWriter:
    """Writes a backup to a new file, which appears under its name when it is complete. Raises Conflict if there is one
    of that name, OSError."""

    def __init__(self, path: Path, head: BackupHead) -> None:
        self._path = path
        self._head_text = msgspec.json.encode(head)
        self._head = head
        if path.exists():
            raise Conflict(f"{path} exists already")
        self._partial = path.with_name(f".{path.name}.partial")
        self._partial.unlink(missing_ok=True)
        fd = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "w+b")
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL)
        self._zip.writestr(_HEAD, self._head_text)
        self.database_sha256, self.database_bytes = "", 0

    @contextmanager
    def database(self, *, is_compressed: bool) -> Iterator[IO[bytes]]:
        """Opens the stream for the copy of the database. ``is_compressed`` saves compressing it twice."""
        info = zipfile.ZipInfo(_DATABASE)
        info.compress_type = zipfile.ZIP_STORED if is_compressed else zipfile.ZIP_DEFLATED
        with self._zip.open(info, "w", force_zip64=True) as stream:
            measured = _Measured(stream)
            yield measured  # type: ignore[misc]  # it is written to, and nothing else
        self.database_sha256, self.database_bytes = measured.digest, measured.size

    def finish(self, sealed: SealedPart, secret: Secret) -> None:
        """Adds the sealed part and gives the file its name."""
        nonce = os.urandom(_NONCE_BYTES)
        cipher = AESGCM(secret.derive(self._head.key))
        self._zip.writestr(_SEALED, nonce + cipher.encrypt(nonce, msgspec.json.encode(sealed), self._head_text))
        self._zip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)

    def discard(self) -> None:
        """Removes the file if it is incomplete."""
        with suppress(ValueError, OSError):
            self._zip.close()
        self._file.close()
        self._partial.unlink(missing_ok=True)


class BackupReader:
    """Reads a backup. Raises InvalidInput if the file is none, or of a newer format; OSError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
            head_text = self._read(_HEAD, _MAX_HEAD_BYTES)
            if msgspec.json.decode(head_text, type=dict[str, object]).get("format") != FORMAT:
                raise InvalidInput(f"{path} was made by a newer version of backend.ai: restore it with that one")
            self.head = msgspec.json.decode(head_text, type=BackupHead)
        except (zipfile.BadZipFile, KeyError, msgspec.MsgspecError) as e:
            raise InvalidInput(f"{path} is not a backup: {e}") from None
        self._head_text = head_text

    def _read(self, name: str, limit: int) -> bytes:
        with self._zip.open(name) as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise InvalidInput(f"{self._path} is not a backup: its part {name} is too large")
        return data

    def sealed(self, secret: Secret) -> SealedPart:
        """Opens the sealed part. Raises Forbidden if the secret is wrong or the file was changed."""
        key = secret.derive(self.head.key)
        try:
            data = self._read(_SEALED, _MAX_SEALED_BYTES)
            text = AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._head_text)
            return msgspec.json.decode(text, type=SealedPart)
        except (InvalidTag, ValueError):
            raise Forbidden(
                f"{self._path} does not open: the passphrase or key is wrong, or the file is damaged"
            ) from None
        except (zipfile.BadZipFile, KeyError, msgspec.MsgspecError) as e:
            raise InvalidInput(f"{self._path} is not a whole backup: {e}") from None

    def check_database(self, sealed: SealedPart) -> None:
        """Reads the copy of the database once. Raises InvalidInput if it is damaged or of another backup."""
        try:
            with self._zip.open(_DATABASE) as stream:
                measured = _Measured(stream)
                while measured.size <= sealed.database_bytes and measured.read():
                    pass
        except (zipfile.BadZipFile, KeyError, EOFError) as e:
            raise InvalidInput(f"the database in {self._path} is damaged: {e}") from None
        if (measured.digest, measured.size) != (sealed.database_sha256, sealed.database_bytes):
            raise InvalidInput(f"the database in {self._path} is damaged, or of another backup")

    def database(self) -> IO[bytes]:
        """Opens the copy of the database for reading."""
        return self._zip.open(_DATABASE)

    def close(self) -> None:
        self._zip.close()
