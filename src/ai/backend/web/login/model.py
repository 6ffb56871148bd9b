"""Defines the values of login sessions."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

PUBLIC_ID_LENGTH = 32


class LoginSecret(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the keys of a logged-in user, and the role that the manager reported.

    They are stored sealed by a key that is derived from the cookie.
    """

    username: str
    access_key: str
    secret_key: str
    role: str
    status: str


class StoredLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a login session as it is stored.

    Attributes:
        login_id: SHA-256 of the cookie, in hex: who reads the store cannot use it as a cookie.
        username: in lower case; all sessions of a user end together by it.
        sealed: the encrypted :class:`LoginSecret`.
        expires_at: in UTC.
        created_at: in UTC.
        address: of the browser at the sign-in.
        client: how the browser called itself then (``User-Agent``), shortened.
        used_at: about when a request last carried its cookie, in UTC; None before the first.
    """

    login_id: str
    username: str
    sealed: bytes
    expires_at: datetime
    created_at: datetime
    address: str = ""
    client: str = ""
    used_at: datetime | None = None

    @property
    def public_id(self) -> str:
        """Returns the id that is shown to the user. It is not the cookie, and is unique among the user's sessions."""
        return self.login_id[:PUBLIC_ID_LENGTH]


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Represents the valid login session of a request."""

    login_id: str
    secret: LoginSecret
    expires_at: datetime


def login_id_of(token: str) -> str:
    """Returns the id under which the login session of a cookie's token is stored."""
    return hashlib.sha256(token.encode()).hexdigest()
