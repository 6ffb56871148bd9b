"""The public interface of hook plugins of the manager: sign-on of a site, and policies (spec 03-01).

A plugin is a subclass of :class:`AbstractHook` under the entry point group :data:`ENTRY_POINT_GROUP`; ``[hooks]`` of
the manager's settings enables it by name and has its settings. :mod:`ai.backend.plugin.testing.hooks` tests an
implementation. Calls run in the manager's event loop: they must not block it, and have a few seconds each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import BaseModel

from ai.backend.common.slots import ResourceSlot

SPI_VERSION = 10
ENTRY_POINT_GROUP = "backendai_hook_v10"


class HookDenied(Exception):
    """Raised by a plugin to refuse a request; the text is shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOn:
    """A request to sign in, from the client at ``address``. ``name`` and ``secret`` are as the user gave them."""

    name: str
    secret: str = field(repr=False)
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An active user of the installation."""

    email: str
    username: str
    domain_name: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """A session before it is enqueued, with names and amounts as they were resolved. ``slots`` are those of each kernel
    of the main role; ``mounts`` are names of folders and artifacts."""

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
    """Answers the questions of the manager that it overrides; the others have answers that change nothing.

    Every method may be called any number of times and by several managers. An error other than :class:`HookDenied`, or
    no answer in time, refuses the request as unavailable; in :meth:`sign_on` it is logged and the next plugin is asked.
    """

    spi_version: ClassVar[int] = SPI_VERSION
    settings_model: ClassVar[type[BaseModel] | None] = None

    def __init__(self, settings: BaseModel | None) -> None:
        self.settings = settings

    async def start(self) -> None:
        """Prepares the plugin, once, before any other call."""

    async def stop(self) -> None:
        """Releases what it has."""

    async def sign_on(self, request: SignOn) -> str | None:
        """Returns the e-mail address of the user whose secret it is, who is then signed in without a password of the
        manager; None: it cannot say, and the next plugin or the manager's own passwords decide. Raises HookDenied: the
        user must not sign in, whatever the others say."""
        return None

    async def check_sign_on(self, account: Account, address: str) -> None:
        """Raises HookDenied: the user, whose secret was right, may not sign in now or from there."""

    async def check_session(self, request: SessionRequest) -> None:
        """Raises HookDenied: the session may not be created."""
