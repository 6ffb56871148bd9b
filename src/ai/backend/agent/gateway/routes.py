"""Stores the routes of this agent before a client learns of them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection

import msgspec

from ai.backend.agent.gateway.model import Route, RouteRecord
from ai.backend.agent.kernels.store import NamedValues
from ai.backend.common.errors import BackendError, LimitExceeded, Unavailable
from ai.backend.common.structs import replace
from ai.backend.infra.tls.certificates import load_authority

log = logging.getLogger(__name__)
_MAX_PER_KERNEL = 64
_KEY_PREFIX = "route/"


class Routes:
    """Opens, finds and closes routes by name. A name is random and is never used again."""

    def __init__(self, values: NamedValues) -> None:
        self._values = values
        self._routes: dict[str, Route] = {}

    def all(self) -> list[Route]:
        return list(self._routes.values())

    def find(self, name: str | None) -> Route | None:
        """Returns an open route."""
        route = self._routes.get(name) if name is not None else None
        return route if route is not None and route.is_open else None

    def find_equal(self, record: RouteRecord) -> Route | None:
        """Returns the open route to the same port of the same kernel for the same authority, or None."""
        for route in self.of_kernel(record.kernel_id):
            if route.is_open and record == replace(route.record, direct_port=None):
                return route
        return None

    def authorities(self) -> set[str]:
        """Returns the certificates of the authorities of all routes, in PEM."""
        return {route.record.authority for route in self._routes.values()}

    def restore(self, live_kernels: Collection[str], *, direct: bool) -> None:
        """Loads the stored routes of live kernels, and deletes all other stored routes.

        Deleted are those of kernels that have ended, of the other kind of addresses (``direct``), and unreadable ones.
        """
        for key, value in self._values.items().items():
            if not key.startswith(_KEY_PREFIX):
                continue
            try:
                record = msgspec.json.decode(value, type=RouteRecord)
                if record.kernel_id in live_kernels and (record.direct_port is not None) == direct:
                    name = key.removeprefix(_KEY_PREFIX)
                    self._routes[name] = Route(name, record, load_authority(record.authority))
                    continue
            except (msgspec.MsgspecError, UnicodeDecodeError, BackendError) as e:
                log.warning("a stored route cannot be read and is closed: %s", e)
            self._values.delete(key)

    def add(self, record: RouteRecord) -> Route:
        """Stores a new route. Raises InvalidInput, LimitExceeded, Unavailable."""
        authority = load_authority(record.authority)
        if len(self.of_kernel(record.kernel_id)) >= _MAX_PER_KERNEL:
            raise LimitExceeded(f"the kernel has {_MAX_PER_KERNEL} routes, as many as it may have")
        route = Route(f"r{secrets.token_hex(16)}", record, authority)
        try:
            self._values.put(_KEY_PREFIX + route.name, msgspec.json.encode(record))
        except OSError as e:
            raise Unavailable(f"the route cannot be stored: {e}") from e
        self._routes[route.name] = route
        return route

    def of_kernel(self, kernel_id: str) -> list[Route]:
        return [route for route in self._routes.values() if route.record.kernel_id == kernel_id]

    def close(self, name: str) -> None:
        """Closes a route, if there is one, and cuts its connections. Raises Unavailable if that cannot be stored: it is
        closed, and must be closed again."""
        route = self._routes.get(name)
        if route is None:
            return
        route.is_open = False
        if route.listener is not None:
            route.listener.close()
        for connection in list(route.connections):
            connection.abort()
        try:
            self._values.delete(_KEY_PREFIX + name)
        except OSError as e:
            raise Unavailable(f"the end of the route cannot be stored: {e}") from e
        del self._routes[name]
