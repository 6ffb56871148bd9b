"""Encrypts secrets in the database with a key that is stored outside of the database (decision 0180).

A sealed secret reads ``gcm1:<key id>:<base64 of nonce, ciphertext and tag>``. Text without this beginning is plain: it
was written without a key, or into the configuration by another program.
"""

from __future__ import annotations

import base64
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from ai.backend.common.errors import InternalError, InvalidInput

log = logging.getLogger(__name__)
CIPHER_PREFIX = "gcm1"
"""AES-256-GCM. Each place has a key of its own, and header and place are authenticated with the ciphertext."""
_NONCE_BYTES, _KEY_BYTES = 12, 32
_CREDENTIALS_LOCATION = "artifact_registries.credentials"
_ENVIRON_LOCATION = "environ"
_CHECK_S = 1.0
_KEY_FILE_COMMENT = "# Opens the secrets in the manager's database. Keep a copy apart from copies of the database.\n"


@dataclass(frozen=True, slots=True)
class SealingKey:
    """Holds a key of 32 bytes with which secrets are sealed.

    Its ``id`` is stored with each secret that it sealed, and does not reveal the key.
    """

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        return self.derive(b"id")[:4].hex()

    def derive(self, purpose: bytes) -> bytes:
        """Derives 32 bytes for one purpose by HKDF (RFC 5869)."""
        return HKDFExpand(SHA256(), _KEY_BYTES, purpose).derive(self.secret)


class Sealer:
    """Seals secrets with the newest key and opens them with any key.

    Args:
        keys: the first seals, all of them open; without any, secrets are stored as they are.
        reload: reads the keys again. It is called when a secret has an unknown key, and when ``stamp`` changes.
        stamp: returns what changes with the keys, such as the times of their file; it is asked once a second at most.

    A running process takes changed keys in use within a second. Keys that cannot be read change nothing.
    """

    def __init__(
        self,
        keys: Sequence[SealingKey] = (),
        *,
        reload: Callable[[], Sequence[SealingKey]] | None = None,
        file_stamp: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._newest_key = keys[0] if keys else None
        self._keys = {key.id: key for key in keys}
        self._reload, self._stamp, self._clock = reload, file_stamp, clock
        self._seen_stamp = file_stamp() if file_stamp is not None else None
        self._checked_at = clock()
        self._missing_ids: set[str] = set()
        self._process_key = new_key()

    @property
    def _newest(self) -> SealingKey | None:
        """Returns the key that seals new secrets, or None if there is no key."""
        if self._stamp is not None and self._clock() - self._checked_at >= _CHECK_S:
            self._checked_at = self._clock()
            file_stamp = self._stamp()
            if file_stamp != self._seen_stamp:
                self._seen_stamp = file_stamp
                self._load()
        return self._newest_key

    def _load(self) -> None:
        """Replaces the keys with the keys that ``reload`` returns."""
        try:
            keys = self._reload() if self._reload is not None else ()
        except (OSError, InvalidInput) as e:
            log.warning("the keys of secrets are not read again, those of before go on being used: %s", e)
            return
        if keys:
            self._newest_key, self._keys = keys[0], {key.id: key for key in keys}
            self._missing_ids.clear()
            log.info("the keys of secrets are read again; %s seals now", self._newest_key.id)

    @property
    def is_on(self) -> bool:
        """Returns True if there is a key to seal secrets with."""
        return self._newest is not None

    def newest_id(self) -> str:
        """Returns the id of the key that seals new secrets, or an empty text if there is no key."""
        return self._newest.id if self._newest is not None else ""

    def derive(self, purpose: bytes, key_id: str) -> bytes:
        """Derives 32 bytes for one purpose from the sealing key ``key_id``, or else from another key.

        If ``key_id`` is empty or its key is missing, the newest key serves; without any key, a random key of this
        process.
        """
        key = self._find_key(key_id) if key_id else None
        return (key or self._newest or self._process_key).derive(b"purpose " + purpose)

    def seal(self, secret: str, location: str) -> str:
        """Encrypts a secret so that it can be opened only at its own location (table, column, row).

        Thus the secrets of two rows cannot be swapped. Without a key the secret is returned unchanged.
        """
        key = self._newest
        if key is None:
            return secret
        nonce = secrets.token_bytes(_NONCE_BYTES)
        ciphertext = _cipher(key, location).encrypt(nonce, secret.encode(), _associated_data(key.id, location))
        return f"{CIPHER_PREFIX}:{key.id}:{base64.b64encode(nonce + ciphertext).decode()}"

    def open(self, stored_text: str, location: str) -> str:
        """Decrypts a sealed secret; a stored text that is not sealed is returned unchanged.

        Raises InternalError if the key is missing, if the text was changed, or if it was sealed for another location.
        """
        key_id_and_text = _parse_sealed(stored_text)
        if key_id_and_text is None:
            return stored_text
        key_id, encoded_text = key_id_and_text
        key = self._find_key(key_id)
        if key is None:
            raise InternalError(f"The key {key_id} that secrets were sealed with is not in the key file.")
        try:
            nonce_and_ciphertext = base64.b64decode(encoded_text, validate=True)
            nonce, ciphertext = nonce_and_ciphertext[:_NONCE_BYTES], nonce_and_ciphertext[_NONCE_BYTES:]
            return _cipher(key, location).decrypt(nonce, ciphertext, _associated_data(key.id, location)).decode()
        except (InvalidTag, ValueError):
            raise InternalError("A sealed secret was damaged, or moved to another place.") from None

    def keyed_digests(self, text: str, location: str) -> list[str]:
        """Returns a digest (HMAC) of a text under each sealing key, newest first, and last the text itself.

        Digests recognize the text, but nobody can test a guess without the keys. The text itself is as it is stored
        without a key.
        """
        message = f"{location}\0{text}".encode()
        digests = [hmac.digest(key.derive(b"mark"), message, "sha256").hex() for key in self._keys.values()]
        return [*digests, text]

    def is_sealed(self, stored_text: str) -> bool:
        """Returns True if a text is sealed with a key that this sealer has."""
        key_id_and_text = _parse_sealed(stored_text)
        return key_id_and_text is not None and self._find_key(key_id_and_text[0]) is not None

    def is_current(self, stored_text: str) -> bool:
        """Returns True if a text is sealed with the newest key."""
        return self._newest is None or stored_text.startswith(f"{CIPHER_PREFIX}:{self._newest.id}:")

    def missing_key_id(self, stored_text: str) -> str | None:
        """Returns the id of the key that sealed a stored text, if the key is missing; otherwise None.

        The result is None also for plain text.
        """
        key_id_and_text = _parse_sealed(stored_text)
        return key_id_and_text[0] if key_id_and_text is not None and key_id_and_text[0] not in self._keys else None

    def _find_key(self, key_id: str) -> SealingKey | None:
        """Returns the sealing key with the given id, or None if the key file does not have the key.

        The key file is read again once for a missing key, and whenever the file changes.
        """
        if key_id not in self._keys:
            _ = self._newest
        if key_id not in self._keys and key_id not in self._missing_ids and self._reload is not None:
            with suppress(OSError, InvalidInput):
                self._keys.update((key.id, key) for key in self._reload())
            if key_id not in self._keys:
                self._missing_ids.add(key_id)
        return self._keys.get(key_id)


def _parse_sealed(stored_text: str) -> tuple[str, str] | None:
    """Returns the key id and the encoded text of a sealed secret, or None for plain text."""
    cipher, _, key_id_and_text = stored_text.partition(":")
    key_id, _, encoded_text = key_id_and_text.partition(":")
    return (key_id, encoded_text) if cipher == CIPHER_PREFIX and encoded_text else None


def _cipher(key: SealingKey, location: str) -> AESGCM:
    """Returns the cipher that seals the secrets of one location, with a key derived for this location.

    Random nonces allow 2**32 secrets a key, so each location has its own.
    """
    return AESGCM(key.derive(b"seal " + location.encode()))


def _associated_data(key_id: str, location: str) -> bytes:
    return f"{CIPHER_PREFIX}:{key_id}:{location}".encode()


def seal_secret_key(sealer: Sealer, access_key: str, secret_key: str) -> str:
    """Seals the secret key of a keypair so that it can be opened in the row of the keypair only."""
    return sealer.seal(secret_key, f"keypairs.secret_key:{access_key}")


def open_secret_key(sealer: Sealer, access_key: str, stored_text: str) -> str:
    """Opens the sealed secret key of a keypair. Raises InternalError if the key that sealed it is missing."""
    return sealer.open(stored_text, f"keypairs.secret_key:{access_key}")


def seal_totp_key(sealer: Sealer, user_id: UUID, key: str) -> str:
    """Seals the key of a user's one-time passwords so that it can be opened in the user's row only."""
    return sealer.seal(key, f"totp_devices.key:{user_id}")


def open_totp_key(sealer: Sealer, user_id: UUID, stored_text: str) -> str:
    """Opens the sealed key of a user's one-time passwords. Raises InternalError if the key that sealed
    it is missing.
    """
    return sealer.open(stored_text, f"totp_devices.key:{user_id}")


def seal_credentials(sealer: Sealer, registry_id: UUID, credentials: Mapping[str, str]) -> dict[str, str]:
    """Seals the credentials of an artifact registry so that they can be opened in the registry's row only."""
    return {
        name: sealer.seal(text, f"{_CREDENTIALS_LOCATION}:{registry_id}:{name}") for name, text in credentials.items()
    }


def open_credentials(sealer: Sealer, registry_id: UUID, sealed_values: Mapping[str, str]) -> dict[str, str]:
    """Opens the sealed credentials of an artifact registry. Raises InternalError if their key is missing."""
    return {
        name: sealer.open(text, f"{_CREDENTIALS_LOCATION}:{registry_id}:{name}") for name, text in sealed_values.items()
    }


def seal_environ(sealer: Sealer, environ: Mapping[str, str]) -> dict[str, str]:
    """Seals the value of each environment variable, so that it can be opened only under the name of the variable.

    The sealed values of an endpoint can thus be copied to the sessions of its replicas.
    """
    return {name: sealer.seal(text, f"{_ENVIRON_LOCATION}:{name}") for name, text in environ.items()}


def open_environ(sealer: Sealer, sealed_values: Mapping[str, str]) -> dict[str, str]:
    """Opens the sealed values of environment variables. Raises InternalError if their key is missing."""
    return {name: sealer.open(text, f"{_ENVIRON_LOCATION}:{name}") for name, text in sealed_values.items()}


# ---- the key file ----


def new_key() -> SealingKey:
    """Returns a new random key to seal secrets with."""
    return SealingKey(secrets.token_bytes(_KEY_BYTES))


def read_keys(path: Path) -> list[SealingKey]:
    """Reads a key file: one key a line in hexadecimal, newest first; ``#`` begins a comment.

    Raises:
        InvalidInput: a line is not a key, there is no key, or other users may read the file.
        OSError: it cannot be read.
    """
    if path.stat().st_mode & 0o077:
        raise InvalidInput(f"{path} must be for its owner only: chmod 600 {path}")
    keys = []
    for line_number, line in enumerate(path.read_text().splitlines(), 1):
        key_text = line.partition("#")[0].strip()
        if not key_text:
            continue
        if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * _KEY_BYTES}}}", key_text):
            raise InvalidInput(f"{path}, line {line_number}: a key is {2 * _KEY_BYTES} hexadecimal digits")
        keys.append(SealingKey(bytes.fromhex(key_text)))
    if not keys:
        raise InvalidInput(f"{path} has no key")
    return keys


def load_or_make_keys(path: Path) -> list[SealingKey]:
    """Reads a key file; a missing file is first created with one key. Raises as :func:`read_keys`."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_keys(path, [new_key()], replace=False)
    return read_keys(path)


def add_key(path: Path, *, is_standby: bool = False) -> SealingKey:
    """Adds a new key to the key file: first, so that it seals new secrets, or last if it is a standby key.

    The existing keys still open secrets. A standby key opens what other managers seal with it. Raises as
    :func:`read_keys`.
    """
    key, existing_keys = new_key(), read_keys(path) if path.exists() else []
    _write_keys(path, [*existing_keys, key] if is_standby else [key, *existing_keys], replace=True)
    return key


def move_to_front(path: Path, key_id: str) -> None:
    """Moves the key ``key_id`` to the front of the key file, so that it seals new secrets.

    Raises InvalidInput if the file does not have it, and as :func:`read_keys`.
    """
    keys = read_keys(path)
    if key_id not in {key.id for key in keys}:
        raise InvalidInput(f"{path} has no key {key_id[:64]!r}, but {', '.join(key.id for key in keys)}")
    _write_keys(path, sorted(keys, key=lambda key: key.id != key_id), replace=True)


def stamp_of(path: Path) -> object:
    """Returns a value that changes when the key file is replaced or written, or None if the file is missing."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
    return None


def keep_first_key(path: Path) -> None:
    """Removes all keys except the first from the key file. Raises as :func:`read_keys`."""
    _write_keys(path, read_keys(path)[:1], replace=True)


def _write_keys(path: Path, keys: Sequence[SealingKey], *, replace: bool) -> None:
    """Writes keys to a file atomically; an existing file is replaced only if ``replace`` is True."""
    temporary_path = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.writelines([_KEY_FILE_COMMENT, *(f"{key.secret.hex()}\n" for key in keys)])
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary_path.replace(path)
        else:
            with suppress(FileExistsError):
                path.hardlink_to(temporary_path)
    finally:
        temporary_path.unlink(missing_ok=True)
