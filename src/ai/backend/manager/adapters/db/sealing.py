"""Secrets as the database keeps them: sealed with a key that is not in it (ADR 0180).

A sealed secret reads ``hs1:<id of the key>:<base64 of nonce, ciphertext and tag>``; what has no such beginning was
written before there was a key, and is plain.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from ai.backend.common.errors import InternalError, InvalidInput

CIPHER = "hs1"
"""Encrypt-then-MAC: HMAC-SHA256 in counter mode as the key stream, HMAC-SHA256 of everything as the tag."""
_NONCE, _TAG, _KEY = 16, 32, 32
_CREDENTIALS = "artifact_registries.credentials"


@dataclass(frozen=True, slots=True)
class SealingKey:
    """32 bytes; ``id`` is told with what it sealed, and says nothing about them."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        return hashlib.sha256(b"id" + self.secret).hexdigest()[:8]

    def derived(self, purpose: bytes) -> bytes:
        return hmac.digest(self.secret, purpose, "sha256")


class Sealer:
    """Seals with the first key and opens with any.

    Args:
        keys: newest first; without any, secrets are written as they are.
        reload: reads the keys again, for a secret that another manager sealed with a key that is new.
    """

    def __init__(
        self, keys: Sequence[SealingKey] = (), *, reload: Callable[[], Sequence[SealingKey]] | None = None
    ) -> None:
        self._newest = keys[0] if keys else None
        self._keys = {key.id: key for key in keys}
        self._reload = reload
        self._unknown: set[str] = set()
        self._passing = new_key()

    @property
    def is_on(self) -> bool:
        return self._newest is not None

    def newest_id(self) -> str:
        """Of the key that seals now; empty without any."""
        return self._newest.id if self._newest is not None else ""

    def derived(self, purpose: bytes, key_id: str) -> bytes:
        """32 bytes that follow from a purpose and this key, or from the newest where that is gone; without any key, the
        same in this process only."""
        key = self._key(key_id) if key_id else None
        return (key or self._newest or self._passing).derived(b"purpose " + purpose)

    def seal(self, secret: str, context: str) -> str:
        """``context`` names the place of the secret: it can be opened there only, so rows cannot be swapped."""
        key = self._newest
        if key is None:
            return secret
        nonce = secrets.token_bytes(_NONCE)
        body = nonce + _mixed(key, nonce, secret.encode())
        sealed = base64.b64encode(body + _tag(key, context, body)).decode()
        return f"{CIPHER}:{key.id}:{sealed}"

    def open(self, stored: str, context: str) -> str:
        """
        Raises:
            InternalError: its key is not here, or it was sealed elsewhere, or it was changed.
        """
        cipher, _, rest = stored.partition(":")
        key_id, _, text = rest.partition(":")
        if cipher != CIPHER or not text:
            return stored
        key = self._key(key_id)
        if key is None:
            raise InternalError(f"The key {key_id} that secrets were sealed with is not in the key file.")
        try:
            body = base64.b64decode(text, validate=True)
        except binascii.Error:
            body = b""
        body, tag = body[:-_TAG], body[-_TAG:]
        if len(body) < _NONCE or not hmac.compare_digest(tag, _tag(key, context, body)):
            raise InternalError("A sealed secret was damaged, or moved to another place.")
        return _mixed(key, body[:_NONCE], body[_NONCE:]).decode()

    def marks(self, text: str, context: str) -> list[str]:
        """By which a text is known again: 64 hexadecimal digits under each key, newest first, that tell nobody else
        whether a guess is right; last the text itself, as it was kept before there was a key."""
        keys = self._keys.values()
        return [
            *(hmac.digest(key.derived(b"mark"), f"{context}\0{text}".encode(), "sha256").hex() for key in keys),
            text,
        ]

    def _key(self, key_id: str) -> SealingKey | None:
        """An unknown one is looked for once."""
        if key_id not in self._keys and key_id not in self._unknown and self._reload is not None:
            with suppress(OSError, InvalidInput):
                self._keys.update((key.id, key) for key in self._reload())
            if key_id not in self._keys:
                self._unknown.add(key_id)
        return self._keys.get(key_id)

    def is_sealed(self, stored: str) -> bool:
        """With a key that is here."""
        cipher, _, rest = stored.partition(":")
        key_id, _, text = rest.partition(":")
        return cipher == CIPHER and bool(text) and self._key(key_id) is not None

    def is_current(self, stored: str) -> bool:
        """Whether sealing it again would change nothing but the nonce."""
        return self._newest is None or stored.startswith(f"{CIPHER}:{self._newest.id}:")

    def missing(self, stored: str) -> str | None:
        """The id of the key that is needed to open it and is not here."""
        cipher, _, rest = stored.partition(":")
        key_id, _, text = rest.partition(":")
        return key_id if cipher == CIPHER and text and key_id not in self._keys else None


def _mixed(key: SealingKey, nonce: bytes, text: bytes) -> bytes:
    """Text XOR key stream: the same both ways."""
    secret, size = key.derived(b"encrypt"), len(text)
    blocks = (hmac.digest(secret, nonce + i.to_bytes(8, "big"), "sha256") for i in range(-(-size // _TAG)))
    stream = b"".join(blocks)[:size]
    return (int.from_bytes(text) ^ int.from_bytes(stream)).to_bytes(size)


def _tag(key: SealingKey, context: str, body: bytes) -> bytes:
    named = context.encode()
    return hmac.digest(key.derived(b"authenticate"), len(named).to_bytes(8, "big") + named + body, "sha256")


def sealed_credentials(sealer: Sealer, registry_id: UUID, credentials: Mapping[str, str]) -> dict[str, str]:
    """Of an artifact registry, as its row keeps them."""
    return {name: sealer.seal(text, f"{_CREDENTIALS}:{registry_id}:{name}") for name, text in credentials.items()}


def opened_credentials(sealer: Sealer, registry_id: UUID, stored: Mapping[str, str]) -> dict[str, str]:
    """Raises InternalError where the key is missing that they were sealed with."""
    return {name: sealer.open(text, f"{_CREDENTIALS}:{registry_id}:{name}") for name, text in stored.items()}


# ---- the key file ----


def new_key() -> SealingKey:
    return SealingKey(secrets.token_bytes(_KEY))


def read_keys(path: Path) -> list[SealingKey]:
    """A key a line in hexadecimal, newest first; ``#`` begins a comment.

    Raises:
        InvalidInput: a line is no key, there is none, or others than its owner may read the file.
        OSError: it cannot be read.
    """
    if path.stat().st_mode & 0o077:
        raise InvalidInput(f"{path} must be for its owner only: chmod 600 {path}")
    keys = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            key = SealingKey(bytes.fromhex(text))
        except ValueError:
            key = SealingKey(b"")
        if len(key.secret) != _KEY:
            raise InvalidInput(f"{path}, line {number}: a key is {2 * _KEY} hexadecimal digits")
        keys.append(key)
    if not keys:
        raise InvalidInput(f"{path} has no key")
    return keys


def load_or_make_keys(path: Path) -> list[SealingKey]:
    """The keys of the file; it is made with one key if it is not there.

    Of several processes that make it at once, one wins and all read its key. Raises as :func:`read_keys`.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, [new_key()], replace=False)
    return read_keys(path)


def add_key(path: Path) -> SealingKey:
    """A new first key, beside the old ones, which still open. Raises as :func:`read_keys`."""
    key = new_key()
    _write(path, [key, *(read_keys(path) if path.exists() else [])], replace=True)
    return key


def keep_first_key(path: Path) -> None:
    """Drop all but the first. Raises as :func:`read_keys`."""
    _write(path, read_keys(path)[:1], replace=True)


def _write(path: Path, keys: Sequence[SealingKey], *, replace: bool) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(
                "# Opens the secrets in the manager's database. Keep a copy apart from copies of the database.\n"
            )
            file.writelines(f"{key.secret.hex()}\n" for key in keys)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.replace(path)
        else:
            with suppress(FileExistsError):
                path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
