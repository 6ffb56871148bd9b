"""Defines the public interface of the manager's hook plugins: sign-on of a site, and policies (spec 03-01).

A plugin is a subclass of :class:`AbstractHook` under the entry point group :data:`ENTRY_POINT_GROUP`; ``[hooks]`` of
the manager's settings enables it by name and has its settings. :mod:`ai.backend.plugin.testing.hooks` tests an
implementation. Calls run in the manager's event loop: they must not block it, and have a few seconds each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from pydantic import BaseModel

from ai.backend.common.slots import ResourceSlot

SPI_VERSION = 10
ENTRY_POINT_GROUP = "backendai_hook_v10"


class HookDenied(Exception):
    """Raised by a plugin to refuse a request. The text is shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOn:
    """Describes a request to sign in, from the client at ``address``.

    ``name`` and ``secret`` are as the user gave them.
    """

    name: str
    secret: str = field(repr=False)
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteUser:
    """Describes a user as a directory or identity provider of the site knows the user.

    It has no role: roles are given in the installation. The manager signs the user in whose e-mail address it is.

    Attributes:
        email: an address that the provider has verified.
        username, full_name: of a new user; empty ones are made from the address.
        domain_name: the domain that the user must be in; None leaves that open, and new users come into ``default``.
        project_names: the projects of that domain that the user is in.
        managed_projects: the projects that the plugin decides on: the user leaves those that are not in
            ``project_names``. Others stay as they are.
        may_create: an unknown user is created.
        may_be_admin: also users whose role is more than ``user`` may sign in so.
    """

    email: str
    username: str = ""
    full_name: str = ""
    domain_name: str | None = None
    project_names: tuple[str, ...] = ()
    managed_projects: tuple[str, ...] = ()
    may_create: bool = False
    may_be_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectStart:
    """Holds the address to which a browser is sent to sign in.

    ``secret`` comes back to the plugin with the browser, and nobody can read or change it in between.
    """

    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSignOn:
    """Describes a request to sign in by a token that another site of the organisation gave to the browser.

    ``address`` is that of the client. ``token`` is as the browser gave it.
    """

    token: str = field(repr=False)
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUser:
    """Describes the user whom a valid token names.

    Attributes:
        user: as of any other sign-on.
        token_id: what tells the token from all others of its issuer, such as ``jti``. The manager takes each once. It
            must not change with the spelling of the token, as a signature or its encoding may.
        expires_at: the end of the token, in UTC. The manager takes none that is good for more than an hour.
    """

    user: SiteUser
    token_id: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SignUpRequest:
    """Describes a request for an account, from the client at ``address``. None of its values is verified."""

    email: str
    username: str
    full_name: str
    domain_name: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Describes an active user of the installation."""

    email: str
    username: str
    domain_name: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """Describes a session before it is enqueued, with resolved names and amounts.

    ``slots`` are those of each kernel of the main role; ``mounts`` are names of folders and artifacts.
    """

    owner: Account
    name: str
    session_type: str
    group_name: str
    resource_group: str
    image: str
    cluster_size: int
    slots: ResourceSlot
    mounts: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)


class AbstractHook:
    """The base of hook plugins, which decide about sign-ons, sign-ups, passwords and sessions for the manager.

    A plugin overrides the methods of its decisions; the other methods change nothing. Every method may be called any
    number of times and by several managers. An error other than :class:`HookDenied`, or no answer in time, refuses the
    request as unavailable; in :meth:`sign_on` it is logged and the next plugin is asked.
    """

    spi_version: ClassVar[int] = SPI_VERSION
    settings_model: ClassVar[type[BaseModel] | None] = None

    def __init__(self, settings: BaseModel | None) -> None:
        self.settings = settings

    async def start(self) -> None:
        """Prepares the plugin once, before any other call."""

    async def stop(self) -> None:
        """Releases the resources of the plugin."""

    async def sign_on(self, request: SignOn) -> str | None:
        """Checks the secret of a sign-on, and returns the e-mail address of the user to whom the secret belongs.

        That user is signed in without a manager's password. Returns None if the plugin cannot decide: the next plugin
        or the manager's own passwords decide then. Raises HookDenied: the user must not sign in, whatever the others
        say.
        """
        return None

    async def sign_on_user(self, request: SignOn) -> SiteUser | None:
        """Returns the user who signs on, like :meth:`sign_on`, with the site's facts about the user.

        By default it has only the e-mail address that :meth:`sign_on` returns, and users of any role may sign on by it.
        """
        email = await self.sign_on(request)
        return None if email is None else SiteUser(email=email, may_be_admin=True)

    async def sign_on_token(self, request: TokenSignOn) -> TokenUser | None:
        """Returns the user whom a token of another site names.

        Returns None if the token is not for this plugin. Raises HookDenied: it is one, and is forged or too old, or its
        user must not sign in.
        """
        return None

    async def begin_redirect(self, return_url: str) -> RedirectStart | None:
        """Returns the address where a browser signs in and then comes back to ``return_url``.

        Returns None if the plugin sends browsers nowhere. Raises HookDenied: not to that URL.
        """
        return None

    async def finish_redirect(self, secret: str, return_url: str, parameters: Mapping[str, str]) -> SiteUser:
        """Returns the user who signed in after the redirect.

        ``secret`` is that of :meth:`begin_redirect` of the same browser, ``parameters`` are the query of the URL at
        which it came back. Raises HookDenied.
        """
        raise HookDenied("This plugin leads browsers nowhere.")

    async def admit_sign_up(self, request: SignUpRequest) -> bool:
        """Returns True if the person may sign up; False if other plugins or the manager decide.

        Raises HookDenied: the person may not sign up, whatever the others say.
        """
        return False

    async def deliver_verification(self, request: SignUpRequest, token: str) -> bool:
        """Sends the token of a new account to the account's e-mail address, for ``POST /auth/verify-email``.

        Returns False if the plugin sends nothing. It is called with an empty token for an address that has an account
        already: it should take as long, and may tell the owner.
        """
        return False

    async def check_password(self, account: Account, password: str) -> None:
        """Checks a new password. Raises HookDenied: the user may not have this password."""

    async def check_sign_on(self, account: Account, address: str) -> None:
        """Checks a sign-on with the right secret. Raises HookDenied: the user may not sign in now or from there."""

    async def check_session(self, request: SessionRequest) -> None:
        """Checks a session before its creation. Raises HookDenied: the session may not be created."""
