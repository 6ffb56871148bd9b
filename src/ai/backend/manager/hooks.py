"""Loads hook plugins, and calls them for the sign-on of a site and for its policies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import Field

from ai.backend.common.errors import Forbidden, InvalidInput, NotFound, Unavailable
from ai.backend.infra.settings import Settings
from ai.backend.plugin.entries import load_class, settings_for
from ai.backend.plugin.hooks import (
    ENTRY_POINT_GROUP,
    AbstractHook,
    Account,
    HookDenied,
    RedirectStart,
    SessionRequest,
    SignOn,
    SignUpRequest,
    SiteUser,
    TokenSignOn,
    TokenUser,
)

log = logging.getLogger(__name__)
T = TypeVar("T")


class HookSettings(Settings):
    """Settings of hook plugins."""

    enabled: list[str] = Field(
        [], description="Names of the installed hook plugins that are asked, in this order; others are not loaded."
    )
    timeout_s: float = Field(10.0, gt=0, description="How long, in seconds, a plugin has to answer.")
    options: dict[str, dict[str, Any]] = Field({}, description="Settings of each plugin, by its name.")


def load_hooks(settings: HookSettings) -> Hooks:
    """Loads and returns the enabled hook plugins. Raises InvalidInput: one is not installed, or has wrong settings;
    PluginError.
    """
    if unknown_names := settings.options.keys() - set(settings.enabled):
        raise InvalidInput(f"hooks.options has {', '.join(sorted(unknown_names))}, which hooks.enabled does not name.")
    plugins = []
    for name in settings.enabled:
        hook_class = load_class(ENTRY_POINT_GROUP, name, AbstractHook)
        values = settings.options.get(name, {})
        plugins.append((name, hook_class(settings_for(hook_class, values, settings_path=f"hooks.options.{name}"))))
    return Hooks(plugins, settings.timeout_s)


@dataclass(eq=False, slots=True)
class Hooks:
    """Calls the hook plugins in their configured order. A check that fails or takes too long refuses the request."""

    plugins: Sequence[tuple[str, AbstractHook]] = ()
    timeout_s: float = 10.0
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        for _, plugin in self.plugins:
            self._stack.push_async_callback(plugin.stop)
            await plugin.start()

    async def stop(self) -> None:
        await self._stack.aclose()

    async def sign_on(self, request: SignOn) -> SiteUser | None:
        """Returns the user whom a plugin finds for a secret, or None if no plugin finds a user. Raises Forbidden."""
        for name, plugin in self.plugins:
            try:
                async with asyncio.timeout(self.timeout_s):
                    user = await plugin.sign_on_user(request)
            except HookDenied as denial:
                raise Forbidden(str(denial) or "You may not sign in.") from None
            except Exception:  # a failing plugin must not lock out users who have a password
                log.exception("the hook %s failed to sign on a user", name)
                continue
            if user is not None:
                return user
        return None

    async def sign_on_token(self, request: TokenSignOn) -> tuple[str, TokenUser] | None:
        """Returns the plugin that accepts a token and the user whom the token names, or None if no plugin accepts it.
        Raises Forbidden, Unavailable.
        """
        for name, plugin in self.plugins:
            user = await self._ask(name, plugin.sign_on_token(request))
            if user is not None:
                return name, user
        return None

    async def begin_redirect(self, name: str, return_url: str) -> RedirectStart:
        """Returns the address to which the plugin ``name`` redirects a browser for signing in. Raises NotFound,
        Forbidden, Unavailable.
        """
        redirect_start = await self._ask(name, self._plugin(name).begin_redirect(return_url))
        if redirect_start is None:
            raise NotFound("There is no such sign-in service.", data={"provider": "unknown"})
        return redirect_start

    async def finish_redirect(self, name: str, secret: str, return_url: str, parameters: Mapping[str, str]) -> SiteUser:
        """Returns the user that the plugin ``name`` signed in. Raises NotFound, Forbidden, Unavailable."""
        return await self._ask(name, self._plugin(name).finish_redirect(secret, return_url, parameters))

    def redirecting_plugins(self) -> list[str]:
        """Returns the names of the plugins that redirect browsers to sign in."""
        return [name for name, plugin in self.plugins if type(plugin).begin_redirect is not AbstractHook.begin_redirect]

    async def admit_sign_up(self, request: SignUpRequest) -> bool:
        """Returns True if at least one plugin admits a new account and no plugin refuses it. Raises Forbidden or
        Unavailable.
        """
        return any([await self._ask(name, plugin.admit_sign_up(request)) for name, plugin in self.plugins])

    async def deliver_verification(self, request: SignUpRequest, token: str) -> bool:
        """Returns True if a plugin has sent the verification token to the user. Raises Forbidden or Unavailable."""
        for name, plugin in self.plugins:
            if await self._ask(name, plugin.deliver_verification(request, token)):
                return True
        return False

    async def check_password(self, account: Account, password: str) -> None:
        """Raises Forbidden or Unavailable if a plugin does not accept a new password."""
        for name, plugin in self.plugins:
            await self._ask(name, plugin.check_password(account, password))

    async def check_sign_on(self, account: Account, address: str) -> None:
        """Raises Forbidden or Unavailable if a plugin does not let a user sign in."""
        for name, plugin in self.plugins:
            await self._ask(name, plugin.check_sign_on(account, address))

    async def check_session(self, request: SessionRequest) -> None:
        """Raises Forbidden or Unavailable if a plugin does not allow a new session."""
        for name, plugin in self.plugins:
            await self._ask(name, plugin.check_session(request))

    def _plugin(self, name: str) -> AbstractHook:
        for plugin_name, plugin in self.plugins:
            if plugin_name == name:
                return plugin
        raise NotFound("There is no such sign-in service.", data={"provider": "unknown"})

    async def _ask(self, name: str, plugin_call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await plugin_call
        except HookDenied as denial:
            raise Forbidden(str(denial) or "A policy of this site forbids it.", data={"hook": name}) from None
        except Exception:  # a policy that cannot be checked does not hold
            log.exception("the hook %s failed", name)
            raise Unavailable("A policy of this site cannot be checked now; try again.", data={"hook": name}) from None
