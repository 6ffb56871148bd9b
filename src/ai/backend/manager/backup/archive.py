"""Reads and writes backup files, which are ZIP files of a head, the copy of the database, and a sealed part.

The sealed part is encrypted with AES-256-GCM, and authenticates the head and, by its digest, the copy of the database.
The copy itself has no secrets but those that the installation's own keys seal, which are in the sealed part.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import zipfile
import zlib
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

_HEAD_NAME, _DATABASE_NAME, _SEALED_NAME = "backup.json", "database", "sealed"
_NONCE_BYTES, _SALT_BYTES = 12, 16
_SCRYPT_WORK, _SCRYPT_BLOCKS, _SCRYPT_LANES = 1 << 17, 8, 1
"""Parameters of scrypt, which cost 128 MiB and less than a second. They belong to the format: a file cannot demand
more.
"""
MIN_PASSPHRASE_CHARACTERS = 12
_MAX_SEALED_BYTES = 1 << 30
_MAX_HEAD_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20
_COMPRESSION_LEVEL = 1
_KEY_ID_PATTERN = re.compile(r"[0-9a-z]{0,64}")
_DAMAGED_FILE_ERRORS = (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError, ValueError, OverflowError)
"""Exceptions of `zipfile` for harmful files, with encrypted parts, unknown methods or bad streams."""


class Passphrase:
    """Seals and opens backups with a passphrase. Raises InvalidInput if it is too short."""

    def __init__(self, passphrase: str) -> None:
        if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:
            raise InvalidInput(f"a passphrase has at least {MIN_PASSPHRASE_CHARACTERS} characters")
        self._text = passphrase

    def new_derivation(self) -> KeyDerivation:
        return KeyDerivation(salt=os.urandom(_SALT_BYTES))

    def derive(self, derivation: KeyDerivation) -> bytes:
        """Returns the key of a backup, which is derived from the passphrase. Raises InvalidInput if it was sealed with
        a key file.
        """
        if not derivation.salt:
            raise InvalidInput(f"the backup was sealed with the key {derivation.key_id} of a file: give --key-file")
        kdf = Scrypt(salt=derivation.salt, length=32, n=_SCRYPT_WORK, r=_SCRYPT_BLOCKS, p=_SCRYPT_LANES)
        return kdf.derive(self._text.encode())


class KeyFile:
    """Opens backups with any key of a key file of ``mgr secrets``, and seals backups with the first key.

    Raises as :func:`~ai.backend.manager.secrets.sealer.read_keys`.
    """

    def __init__(self, path: Path) -> None:
        self._keys: dict[str, SealingKey] = {key.id: key for key in read_keys(path)}
        self._path = path

    def new_derivation(self) -> KeyDerivation:
        return KeyDerivation(salt=b"", key_id=next(iter(self._keys)))

    def derive(self, derivation: KeyDerivation) -> bytes:
        """Returns the key of a backup, which is derived from a key of the file. Raises InvalidInput if the file does
        not have it.
        """
        if derivation.key_id not in self._keys:
            secret_description = f"the key {derivation.key_id}" if derivation.key_id else "a passphrase"
            raise InvalidInput(f"the backup was sealed with {secret_description}, which {self._path} does not have")
        return self._keys[derivation.key_id].derive(b"backup")


class Secret(Protocol):
    """Describes a passphrase or key file that seals and opens backups."""

    def new_derivation(self) -> KeyDerivation: ...
    def derive(self, derivation: KeyDerivation) -> bytes:
        """Derives the key of a backup, 32 bytes, from this secret.

        Raises InvalidInput if the backup was sealed with something else.
        """


class _MeasuredStream:
    """Passes bytes on to a stream, and counts and hashes the bytes."""

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
    """Writes a backup to a draft, which gets its final name only when it is complete. Raises Conflict if there is one
    of that name, OSError.

    Several may write at once: each has a draft of its own, and the first to finish gets the name. Drafts of programs
    that were killed are removed by the next writer.
    """

    def __init__(self, path: Path, head: BackupHead) -> None:
        self._path = path
        self._head_text = msgspec.json.encode(head)
        self._head = head
        if path.exists():
            raise Conflict(f"{path} exists already")
        _remove_abandoned_drafts(path)
        self._draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        fd = os.open(self._draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "w+b")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL)
            self._zip.writestr(_HEAD_NAME, self._head_text)
        except BaseException:
            self._close_and_remove()
            raise
        self.database_sha256, self.database_bytes = "", 0

    @contextmanager
    def open_database(self, *, is_compressed: bool) -> Iterator[IO[bytes]]:
        """Opens the stream for the copy of the database. ``is_compressed``: it is compressed already."""
        zip_entry = zipfile.ZipInfo(_DATABASE_NAME)
        zip_entry.compress_type = zipfile.ZIP_STORED if is_compressed else zipfile.ZIP_DEFLATED
        with self._zip.open(zip_entry, "w", force_zip64=True) as stream:
            measured_stream = _MeasuredStream(stream)
            yield measured_stream  # type: ignore[misc]  # it is written to, and nothing else
        self.database_sha256, self.database_bytes = measured_stream.digest, measured_stream.size

    def finish(self, sealed_part: SealedPart, secret: Secret) -> None:
        """Adds the sealed part and gives the file its final name."""
        nonce = os.urandom(_NONCE_BYTES)
        cipher = AESGCM(secret.derive(self._head.key))
        self._zip.writestr(
            _SEALED_NAME, nonce + cipher.encrypt(nonce, msgspec.json.encode(sealed_part), self._head_text)
        )
        self._zip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        try:
            os.link(self._draft, self._path)  # unlike a rename, it replaces nothing
        except FileExistsError:
            raise Conflict(f"{self._path} exists already") from None

    def discard(self) -> None:
        """Removes the draft, whether it is complete or not. A full disk causes no error."""
        with suppress(ValueError, OSError):
            self._zip.close()
        self._close_and_remove()

    def _close_and_remove(self) -> None:
        with suppress(OSError):  # what is buffered cannot be written to a full disk
            self._file.close()
        self._draft.unlink(missing_ok=True)


def _remove_abandoned_drafts(path: Path) -> None:
    """Removes drafts of a backup that no process writes any more, except drafts of other users."""
    draft_name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.partial")
    for draft in path.parent.iterdir():
        if draft_name.fullmatch(draft.name):
            with suppress(OSError), open(draft, "rb", opener=_open_without_links) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()


def _open_without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


class BackupReader:
    """Reads the parts of a backup file. Raises InvalidInput if it is no backup or has a newer format; OSError if it
    cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip = _open_zip(path)
        try:
            head_text = self._read(_HEAD_NAME, _MAX_HEAD_BYTES)
            if msgspec.json.decode(head_text, type=dict[str, object]).get("format") != FORMAT:
                raise InvalidInput(f"{path} was made by a newer version of backend.ai: restore it with that one")
            self.head = msgspec.json.decode(head_text, type=BackupHead)
            if not _KEY_ID_PATTERN.fullmatch(self.head.key.key_id):
                raise InvalidInput(f"{path} is not a backup: the id of its key is malformed")
        except InvalidInput:
            self._zip.close()
            raise
        except (*_DAMAGED_FILE_ERRORS, msgspec.MsgspecError) as e:
            self._zip.close()
            raise InvalidInput(f"{path} is not a backup: {e}") from None
        self._head_text = head_text

    def _read(self, name: str, max_bytes: int) -> bytes:
        with self._zip.open(name) as stream:
            data = stream.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise InvalidInput(f"{self._path} is not a backup: its part {name} is too large")
        return data

    def open_sealed_part(self, secret: Secret) -> SealedPart:
        """Opens and returns the sealed part. Raises Forbidden if the secret is wrong or the file was changed."""
        key = secret.derive(self.head.key)
        try:
            data = self._read(_SEALED_NAME, _MAX_SEALED_BYTES)
        except InvalidInput:
            raise
        except _DAMAGED_FILE_ERRORS as e:
            raise InvalidInput(f"{self._path} is not a whole backup: {e}") from None
        try:
            decrypted_text = AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._head_text)
        except (InvalidTag, ValueError):
            raise Forbidden(
                f"{self._path} does not open: the passphrase or key is wrong, or the file is damaged"
            ) from None
        try:
            return msgspec.json.decode(decrypted_text, type=SealedPart)
        except msgspec.MsgspecError as e:
            raise InvalidInput(f"{self._path} is not a whole backup: {e}") from None

    def check_database(self, sealed_part: SealedPart) -> None:
        """Reads the whole copy of the database once, to check it. Raises InvalidInput if it is damaged or of another
        backup.
        """
        try:
            with self._zip.open(_DATABASE_NAME) as stream:
                measured_stream = _MeasuredStream(stream)
                while measured_stream.size <= sealed_part.database_bytes and measured_stream.read():
                    pass
        except _DAMAGED_FILE_ERRORS as e:
            raise InvalidInput(f"the database in {self._path} is damaged: {e}") from None
        if (measured_stream.digest, measured_stream.size) != (sealed_part.database_sha256, sealed_part.database_bytes):
            raise InvalidInput(f"the database in {self._path} is damaged, or of another backup")

    @contextmanager
    def open_database(self, sealed_part: SealedPart) -> Iterator[IO[bytes]]:
        """Opens the copy of the database for reading.

        At the end of the copy the stream raises InvalidInput if the bytes are not those that :meth:`check_database` has
        read: others may write to the file meanwhile.
        """
        with self._zip.open(_DATABASE_NAME) as stream:
            yield _CheckedStream(stream, self._path, sealed_part)  # type: ignore[misc]  # it is read, and nothing else

    def close(self) -> None:
        self._zip.close()


class _CheckedStream(_MeasuredStream):
    """Passes on the copy of a database, and raises InvalidInput if its digest is not the one in the sealed part."""

    def __init__(self, stream: IO[bytes], path: Path, sealed_part: SealedPart) -> None:
        super().__init__(stream)
        self._path, self._sealed = path, sealed_part

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        try:
            data = super().read(size)
        except _DAMAGED_FILE_ERRORS as e:
            raise InvalidInput(f"the database in {self._path} is damaged: {e}") from None
        if self.size > self._sealed.database_bytes or (
            size and not data and self.digest != self._sealed.database_sha256
        ):
            raise InvalidInput(f"the database in {self._path} has changed since it was checked")
        return data


def _open_zip(path: Path) -> zipfile.ZipFile:
    """Opens a backup as a ZIP file. Raises InvalidInput if it is no ZIP file, and OSError."""
    try:
        return zipfile.ZipFile(path)
    except _DAMAGED_FILE_ERRORS as e:
        raise InvalidInput(f"{path} is not a backup: {e}") from None
