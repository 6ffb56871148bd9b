"""Loads hook plugins and asks them: sign-on of a site and policies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, ValidationError

from ai.backend.common.errors import Forbidden, InvalidInput, Unavailable
from ai.backend.infra.settings import Settings
from ai.backend.plugin.entries import load_class
from ai.backend.plugin.hooks import ENTRY_POINT_GROUP, AbstractHook, Account, HookDenied, SessionRequest, SignOn
from ai.backend.plugin.settings import problems_of

log = logging.getLogger(__name__)


class HookSettings(Settings):
    """Settings of hook plugins."""

    enabled: list[str] = Field(
        [], description="Names of the installed hook plugins that are asked, in this order; others are not loaded."
    )
    timeout_s: float = Field(10.0, gt=0, description="How long, in seconds, a plugin has to answer.")
    options: dict[str, dict[str, Any]] = Field({}, description="Settings of each plugin, by its name.")


def load_hooks(settings: HookSettings) -> Hooks:
    """Returns the enabled plugins. Raises InvalidInput: one is not installed, or has wrong settings; PluginError."""
    if unknown := settings.options.keys() - set(settings.enabled):
        raise InvalidInput(f"hooks.options has {', '.join(sorted(unknown))}, which hooks.enabled does not name.")
    named = []
    for name in settings.enabled:
        cls, values = load_class(ENTRY_POINT_GROUP, name, AbstractHook), settings.options.get(name, {})
        model = cls.settings_model
        if model is None and values:
            raise InvalidInput(f"hooks.options.{name}: the plugin has no settings.")
        try:
            named.append((name, cls(model.model_validate(values) if model is not None else None)))
        except ValidationError as e:
            problems = {f"hooks.options.{name}.{key}": problem for key, problem in problems_of(e).items()}
            text = "; ".join(f"{place}: {problem}" for place, problem in problems.items())
            raise InvalidInput(text, data=problems) from None
    return Hooks(named, settings.timeout_s)


@dataclass(eq=False, slots=True)
class Hooks:
    """Asks the plugins in their order. A check that fails or takes too long refuses the request."""

    plugins: Sequence[tuple[str, AbstractHook]] = ()
    timeout_s: float = 10.0
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        for _, plugin in self.plugins:
            self._stack.push_async_callback(plugin.stop)
            await plugin.start()

    async def stop(self) -> None:
        await self._stack.aclose()

    async def sign_on(self, request: SignOn) -> str | None:
        """Returns the e-mail address of the user whom a plugin knows by this secret; None if none does. Raises
        Forbidden."""
        for name, plugin in self.plugins:
            try:
                async with asyncio.timeout(self.timeout_s):
                    email = await plugin.sign_on(request)
            except HookDenied as denial:
                raise Forbidden(str(denial) or "You may not sign in.") from None
            except Exception:  # a failing plugin must not lock out users who have a password
                log.exception("the hook %s failed to sign on a user", name)
                continue
            if email is not None:
                return email
        return None

    async def check_sign_on(self, account: Account, address: str) -> None:
        """Raises Forbidden or Unavailable unless every plugin lets a user sign in."""
        for name, plugin in self.plugins:
            await self._check(name, plugin.check_sign_on(account, address))

    async def check_session(self, request: SessionRequest) -> None:
        """Raises Forbidden or Unavailable unless every plugin allows a session."""
        for name, plugin in self.plugins:
            await self._check(name, plugin.check_session(request))

    async def _check(self, name: str, answer: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                await answer
        except HookDenied as denial:
            raise Forbidden(str(denial) or "A policy of this site forbids it.", data={"hook": name}) from None
        except Exception:  # a policy that cannot be checked does not hold
            log.exception("the hook %s failed", name)
            raise Unavailable("A policy of this site cannot be checked now; try again.", data={"hook": name}) from None
