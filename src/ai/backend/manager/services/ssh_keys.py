"""The SSH key with which a user logs in to all of their sessions (peer facts 4.2, `/auth/ssh-keypair`).

Only the public half is kept: it is all that the server of a session needs, and what is not kept cannot be taken.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Awaitable, Callable

from ai.backend.common.errors import InvalidInput, NotFound
from ai.backend.infra.clock import Clock
from ai.backend.manager.model.identity import Caller
from ai.backend.manager.ports.identity_store import IdentityStore
from ai.backend.manager.services.identity import IdentityService

KINDS = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)
MAX_KEY = 16_384
_BEGIN, _END = "-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"

MakeKeyPair = Callable[[str], Awaitable[tuple[str, str]]]
"""Public and private half of a new key, for a comment. Raises NotSupported where nothing here can make one."""


class SshKeyService:
    """Each keypair has one key or none. It opens the sessions that are made from then on."""

    def __init__(self, store: IdentityStore, identity: IdentityService, make: MakeKeyPair, clock: Clock) -> None:
        self._store = store
        self._identity = identity
        self._make = make
        self._clock = clock

    async def public_key(self, caller: Caller) -> str:
        """Of the caller's keypair; empty for none."""
        found = await self._store.keypair(caller.access_key)
        return (found.ssh_public_key or "") if found is not None else ""

    async def generate(self, caller: Caller) -> tuple[str, str]:
        """A new key in the place of the old one: its public and, this once, its private half. Raises NotSupported."""
        public, private = await self._make(caller.email)
        await self._keep(caller, check_public_key(public))
        return public, private

    async def upload(self, caller: Caller, public: str, private: str) -> str:
        """Take a key that the caller has made; the private half, or an empty one, is only compared.

        Raises:
            InvalidInput: it is no key, or the halves are of two keys.
        """
        checked = check_public_key(public)
        if private.strip():
            _check_same(checked, private)
        await self._keep(caller, checked)
        return checked

    async def _keep(self, caller: Caller, public: str) -> None:
        values = {"ssh_public_key": public, "modified_at": self._clock.now()}
        if await self._store.change_keypair(caller.access_key, **values) is None:
            raise NotFound("There is no such keypair.")
        self._identity.invalidate(caller.access_key)


def check_public_key(text: str) -> str:
    """A line of ``authorized_keys`` without options, as it may be kept.

    Raises:
        InvalidInput: ``data`` names the field.
    """
    kind, _, rest = text.strip().partition(" ")
    encoded, _, comment = rest.strip().partition(" ")
    if len(text) > MAX_KEY or kind not in KINDS or not text.strip().isprintable():
        raise InvalidInput(
            f"A public key is one line that begins with its kind: {', '.join(sorted(KINDS))}.",
            data={"pubkey": "malformed"},
        )
    try:  # comes the whole of it, and is it of that kind?
        told, *numbers = _strings(base64.b64decode(encoded, validate=True))
        if told != kind.encode() or not numbers:
            raise ValueError
    except (ValueError, struct.error):
        raise InvalidInput("The public key was damaged.", data={"pubkey": "malformed"}) from None
    return " ".join(part for part in (kind, encoded, comment.strip()) if part)


def _check_same(public: str, private: str) -> None:
    """A private key in OpenSSH's own format tells its public half, also where it has a passphrase; others do not."""
    text = private.strip()
    if len(text) > MAX_KEY or not text.startswith("-----BEGIN ") or "PRIVATE KEY-----" not in text.splitlines()[0]:
        raise InvalidInput("That is no private key.", data={"privkey": "malformed"})
    if not text.startswith(_BEGIN):
        return
    try:
        blob = base64.b64decode("".join(text.removeprefix(_BEGIN).removesuffix(_END).split()), validate=True)
        if not blob.startswith(_MAGIC):
            raise ValueError
        head = blob[len(_MAGIC) :]
        after = sum(4 + len(part) for part in _strings(head, 3)) + 4  # cipher, derivation, its options; how many keys
        [told] = _strings(head[after:], 1)
    except (ValueError, binascii.Error, struct.error):
        raise InvalidInput("The private key was damaged.", data={"privkey": "malformed"}) from None
    if told != base64.b64decode(public.split(" ")[1]):
        raise InvalidInput("The private key is another one's.", data={"privkey": "not of pubkey"})


def _strings(blob: bytes, count: int | None = None) -> list[bytes]:
    """The first strings of a structure of SSH, or all: a length of four bytes and so many bytes (RFC 4251, section
    5)."""
    found: list[bytes] = []
    while blob if count is None else len(found) < count:
        (length,) = struct.unpack(">I", blob[:4])
        if len(blob) < 4 + length:
            raise ValueError
        found.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return found
