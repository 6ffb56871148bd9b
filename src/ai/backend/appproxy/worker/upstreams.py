"""Connects to the services of routes, by address or through the service gateways of agents."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Protocol, TypeVar

from ai.backend.common.errors import AddressRefused, Unavailable
from ai.backend.common.wire.appproxy import RouteInfo
from ai.backend.infra.http.outbound import LINK_LOCAL, AddressGuard, parse_networks
from ai.backend.infra.tls.certificates import TlsIdentity
from ai.backend.infra.tls.upstream import connect_upstream

P = TypeVar("P", bound=asyncio.Protocol)
_GUARD = AddressGuard((*LINK_LOCAL, *parse_networks("224.0.0.0/4", "ff00::/8")))


class Dialer(Protocol):
    """Opens connections to the routes of circuits."""

    async def dial(self, factory: Callable[[], P], route: RouteInfo, *, timeout_s: float) -> P:
        """Connects to a route, and returns the connection's protocol. Raises Unavailable, or AddressRefused.

        An address that no session has is refused.
        """


class RouteDialer:
    """Opens connections to routes, and only to the addresses that the coordinator has sent.

    ``identity`` is the key and certificate that the worker presents to service gateways.
    """

    def __init__(self) -> None:
        self.identity: TlsIdentity | None = None

    async def dial(self, factory: Callable[[], P], route: RouteInfo, *, timeout_s: float) -> P:
        if route.gateway is not None:
            if self.identity is None:
                raise Unavailable("this worker has no certificate for gateways yet")
            _, protocol = await connect_upstream(
                factory,
                route.kernel_host,
                route.kernel_port,
                route.gateway.name,
                route.gateway.certificate,
                self.identity,
                timeout_s=timeout_s,
            )
            return protocol
        try:
            async with asyncio.timeout(timeout_s):
                loop = asyncio.get_running_loop()
                address = await resolve(loop, route.kernel_host)
                _, app_protocol = await loop.create_connection(factory, address, route.kernel_port)
        except (OSError, TimeoutError) as e:
            raise Unavailable("the service cannot be reached") from e
        return app_protocol


async def resolve(loop: asyncio.AbstractEventLoop, host: str) -> str:
    """Returns the IP address of a host name.

    Raises AddressRefused for link-local, multicast and unspecified addresses, however they are written, and for those
    of metadata services of clouds: no session is there.
    """
    try:
        address = ip_address(host)
    except ValueError:
        address_infos = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        address = ip_address(address_infos[0][4][0])
    if _GUARD.refuses(str(address)):
        raise AddressRefused("The address of the service is none that a session has.")
    return str(address)
