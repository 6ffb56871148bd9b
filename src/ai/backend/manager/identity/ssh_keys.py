"""Manages the public SSH key that opens all sessions of a user (peer facts 4.2, `/auth/ssh-keypair`)."""

from __future__ import annotations

from ai.backend.common.errors import InvalidInput, NotFound
from ai.backend.infra.clock import Clock
from ai.backend.infra.ssh_keys import SshKeyPair, are_of_one_pair, generate_key_pair, normalize_public_key
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.store import IdentityStore

MAX_KEY_LENGTH = 16_384
"""The maximum number of characters of an SSH key."""


class SshKeyService:
    """Manages the SSH key of a keypair. A key opens the sessions that are created after the key was set."""

    def __init__(self, store: IdentityStore, identity: IdentityService, clock: Clock) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock

    async def public_key(self, caller: Caller) -> str:
        """Returns the public SSH key of the caller's keypair, or an empty text if there is no key."""
        keypair = await self._store.keypair(caller.access_key)
        return (keypair.ssh_public_key or "") if keypair is not None else ""

    async def generate(self, caller: Caller) -> SshKeyPair:
        """Replaces the SSH key by a new one and returns both halves; the private half is not stored."""
        key_pair = generate_key_pair(caller.email)
        await self._store_key(caller, check_public_key(key_pair.public))
        return key_pair

    async def upload(self, caller: Caller, public_key: str, private_key: str) -> str:
        """Replaces the SSH key by an uploaded one and returns its public half; a private half is only compared. Raises
        InvalidInput.
        """
        public_key = check_public_key(public_key)
        if private_key.strip():
            _require_same_pair(public_key, private_key)
        await self._store_key(caller, public_key)
        return public_key

    async def _store_key(self, caller: Caller, public_key: str) -> None:
        values = {"ssh_public_key": public_key, "modified_at": self._clock.now()}
        if await self._store.change_keypair(caller.access_key, **values) is None:
            raise NotFound("There is no such keypair.")
        self._identity.invalidate(caller.access_key)


def check_public_key(key_text: str) -> str:
    """Returns an uploaded public key in the form in which it is stored. Raises InvalidInput, whose ``data`` names the
    field.
    """
    try:
        if len(key_text) > MAX_KEY_LENGTH:
            raise ValueError("The public key is too long.")
        return normalize_public_key(key_text)
    except ValueError as e:
        raise InvalidInput(str(e), data={"pubkey": "malformed"}) from None


def _require_same_pair(public_key: str, private_key: str) -> None:
    try:
        if len(private_key) > MAX_KEY_LENGTH:
            raise ValueError
        if are_of_one_pair(public_key, private_key):
            return
    except ValueError:
        raise InvalidInput("That is not a private key, or it was damaged.", data={"privkey": "malformed"}) from None
    raise InvalidInput("The private key does not belong to the public key.", data={"privkey": "not of pubkey"})
