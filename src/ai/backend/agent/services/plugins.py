"""Accelerator plugins: found, started, called with deadlines, and contained when they misbehave.

A plugin that cannot be imported, fails in ``init`` or does not answer in time is unhealthy with a reason; the others go
on. Everything the agent wants of a plugin goes through :meth:`PluginHandle.call`, the seam behind which a plugin may
live in a process of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from pydantic import ValidationError

from ai.backend.common.errors import BackendError, DeadlineExceeded, PluginError
from ai.backend.core.allocation.node import order_plugins
from ai.backend.plugin.accelerator import ENTRY_POINT_GROUP, AbstractComputePlugin, TerminationDeferred

log = logging.getLogger(__name__)
R = TypeVar("R")
_RETRY_FIRST_S, _RETRY_MAX_S = 15.0, 300.0


@dataclass(frozen=True, slots=True)
class PluginSource:
    """Where a plugin comes from. ``load`` imports it, and may raise anything."""

    name: str
    load: Callable[[], type[AbstractComputePlugin]]


class PluginHandle:
    """One plugin with its health. ``key`` is its device name once it was loaded, its source's name before."""

    def __init__(self, source: PluginSource, settings: Mapping[str, Mapping[str, Any]], timeout_s: float) -> None:
        self._source = source
        self._settings = settings
        self._timeout_s = timeout_s
        self._class: type[AbstractComputePlugin] | None = None
        self._plugin: AbstractComputePlugin | None = None
        self._retry_at = 0.0
        self._retry_after_s = _RETRY_FIRST_S
        self._faults: dict[str, str] = {"init": "not started"}

    @property
    def key(self) -> str:
        return self._class.key if self._class is not None else self._source.name

    @property
    def version(self) -> str:
        return self._class.version if self._class is not None else ""

    @property
    def started(self) -> bool:
        return self._plugin is not None

    @property
    def reason(self) -> str | None:
        """Why it is not healthy: the oldest fault that no later call of the same kind has made good."""
        return next(iter(self._faults.values()), None)

    @property
    def healthy(self) -> bool:
        return self.started and self.reason is None

    @property
    def plugin(self) -> AbstractComputePlugin:
        """Raises PluginError unless it was started."""
        if self._plugin is None:
            raise PluginError(f"the plugin {self.key} is not available: {self.reason}")
        return self._plugin

    async def start(self, now: float) -> None:
        """Import and initialise it; a failure is kept as the reason and tried again later, ever more rarely."""
        if self._plugin is not None or now < self._retry_at:
            return
        try:
            self._class = cls = self._source.load()
            model = cls.settings_model
            given = self._settings.get(cls.key, {})
            plugin = cls(model.model_validate(given) if model is not None else None)
            async with asyncio.timeout(self._timeout_s):
                await plugin.init()
        except ValidationError as e:
            places = "; ".join(f"plugins.{self.key}.{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in e.errors())
            self._failed(places, now)
        except TimeoutError:
            self._failed(f"init took longer than {self._timeout_s:g} s", now)
        except Exception as e:
            log.exception("the plugin %s cannot be started", self._source.name)
            self._failed(f"{type(e).__name__}: {e}", now)
        else:
            self._plugin, self._faults = plugin, {}
            self._retry_after_s = _RETRY_FIRST_S

    def _failed(self, reason: str, now: float) -> None:
        self._faults = {"init": reason}
        self._retry_at = now + self._retry_after_s
        self._retry_after_s = min(self._retry_after_s * 2, _RETRY_MAX_S)

    async def call(self, what: str, call: Callable[[AbstractComputePlugin], Awaitable[R]]) -> R:
        """One call with its deadline. A later success of the same kind of call makes a fault good.

        Raises:
            PluginError: it failed or did not answer; the plugin is unhealthy now.
            BackendError, TerminationDeferred: what the plugin means to say.
        """
        plugin = self.plugin
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await call(plugin)
        except TimeoutError:
            fault = self._faults[what] = f"{what} took longer than {self._timeout_s:g} s"
            raise DeadlineExceeded(f"the plugin {self.key} did not answer: {fault}") from None
        except (BackendError, TerminationDeferred):
            raise
        except Exception as e:
            log.exception("%s of the plugin %s failed", what, self.key)
            fault = self._faults[what] = f"{what} failed: {type(e).__name__}: {e}"
            raise PluginError(f"the plugin {self.key}: {fault}") from e
        self._faults.pop(what, None)
        return result

    async def refuse(self, reason: str) -> None:
        """Stop it for good: it cannot be used together with the others."""
        await self.stop()
        self._faults = {"init": reason}
        self._retry_at = float("inf")

    async def stop(self) -> None:
        plugin, self._plugin = self._plugin, None
        if plugin is None:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await plugin.cleanup()
        except Exception:
            log.exception("cleanup of the plugin %s failed", self.key)


class PluginSet:
    """All plugins of this agent in allocation order, see :func:`ai.backend.core.allocation.node.order_plugins`."""

    def __init__(
        self,
        sources: Iterable[PluginSource],
        *,
        settings: Mapping[str, Mapping[str, Any]],
        order: Sequence[str],
        timeout_s: float,
    ) -> None:
        self._order = order
        self.handles = [PluginHandle(source, settings, timeout_s) for source in sources]

    async def start(self, now: float) -> None:
        """Start whatever is not started. Two plugins with one device name: the later is refused."""
        await asyncio.gather(*(handle.start(now) for handle in self.handles))
        seen: dict[str, PluginHandle] = {}
        for handle in self.handles:
            if handle.started and seen.setdefault(handle.key, handle) is not handle:
                await handle.refuse(f"another plugin already serves {handle.key}")
        places = {key: i for i, key in enumerate(order_plugins({h.key for h in self.handles}, self._order))}
        self.handles.sort(key=lambda h: places[h.key])

    async def stop(self) -> None:
        await asyncio.gather(*(handle.stop() for handle in self.handles))

    def started(self) -> list[PluginHandle]:
        return [handle for handle in self.handles if handle.started]

    def get(self, key: str) -> PluginHandle:
        """Raises PluginError if there is no such plugin now."""
        for handle in self.handles:
            if handle.key == key and handle.started:
                return handle
        raise PluginError(f"the plugin {key} is not available on this agent")


def plugin_of(module_or_class: object, where: str) -> type[AbstractComputePlugin]:
    """The plugin class that a module means: itself, its ``Plugin``, or the only subclass that it shows.

    Raises:
        PluginError: there is none, or more than one.
    """
    if inspect.isclass(module_or_class) and issubclass(module_or_class, AbstractComputePlugin):
        return module_or_class
    named = getattr(module_or_class, "Plugin", None)
    candidates = [named] if named is not None else list(vars(module_or_class).values())
    found = {
        item
        for item in candidates
        if inspect.isclass(item) and issubclass(item, AbstractComputePlugin) and not inspect.isabstract(item)
    }
    if len(found) != 1:
        raise PluginError(f"{where} shows {len(found)} compute plugins instead of one")
    return found.pop()


def _from_package(path: str) -> Callable[[], type[AbstractComputePlugin]]:
    return lambda: plugin_of(importlib.import_module(path), path)


def _from_entry_point(entry: EntryPoint) -> Callable[[], type[AbstractComputePlugin]]:
    return lambda: plugin_of(entry.load(), entry.name)


def find_plugins(allowed: Sequence[str], blocked: Sequence[str], intrinsic: Sequence[str]) -> list[PluginSource]:
    """The plugins to load: the intrinsic ones and the allowed ones, less the blocked ones.

    A name is a package path, or the name of an entry point of the group ``backendai_accelerator_v30``; ``*`` allows
    every installed entry point.
    """
    installed = {ep.name: ep for ep in entry_points(group=ENTRY_POINT_GROUP)}
    wanted: dict[str, PluginSource] = {}
    for name in [*intrinsic, *(n for n in allowed if n != "*"), *(installed if "*" in allowed else ())]:
        entry = installed.get(name)
        package = entry.module if entry is not None else name
        root = next((known for known in wanted if package == known or package.startswith(known + ".")), package)
        if name in blocked or package in blocked or root in wanted:
            continue
        if entry is not None:
            wanted[package] = PluginSource(name, _from_entry_point(entry))
        else:
            wanted[package] = PluginSource(name, _from_package(name))
    return list(wanted.values())
