"""Defines the values of workers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from ai.backend.common.wire.appproxy import AppFilter, AppMode, FrontendMode, ProxyProtocol

_USUAL_PORTS = {"http": 80, "https": 443}


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a worker as it registered. ``nodes`` are its processes that are alive; without one the worker is lost.

    ``version`` grows with each change of its circuits.
    """

    id: UUID
    authority: str
    frontend_mode: FrontendMode
    protocol: ProxyProtocol
    hostname: str
    use_tls: bool
    api_port: int
    port_range: tuple[int, int] | None
    wildcard_domain: str | None
    wildcard_port: int | None
    filtered_apps_only: bool
    accepted_traffics: tuple[AppMode, ...]
    app_filters: tuple[AppFilter, ...]
    created_at: datetime
    updated_at: datetime
    version: int = 0
    nodes: int = 0

    @property
    def capacity(self) -> int:
        """Returns the number of the worker's slots. -1 means that the number is not limited."""
        if self.port_range is None:
            return -1
        first_port, last_port = self.port_range
        return last_port - first_port + 1

    def has_slot(self, port: int | None, subdomain: str | None) -> bool:
        """Returns True if a port or a subdomain name is one that the worker, as it is registered now, can serve."""
        if self.port_range is not None:
            return port is not None and self.port_range[0] <= port <= self.port_range[1]
        return subdomain is not None

    def url_of(self, port: int | None, subdomain: str | None) -> str:
        """Returns the URL of a slot, without a slash at its end."""
        scheme = "https" if self.use_tls else "http"
        if port is not None:
            host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
            return f"{scheme}://{host}:{port}"
        port_suffix = "" if self.wildcard_port in (None, _USUAL_PORTS[scheme]) else f":{self.wildcard_port}"
        return f"{scheme}://{subdomain}{self.wildcard_domain}{port_suffix}"

    def matches(self, tags: Mapping[str, str]) -> bool:
        """Returns True if one of the worker's app filters matches the tags of an app."""
        return any(tags.get(app_filter.key) == app_filter.value for app_filter in self.app_filters)
