"""Converts circuits into the keys and values of Traefik's dynamic configuration (spec 03-16), without IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ai.backend.appproxy.worker.planes.haproxy.config import weights_of
from ai.backend.common.wire.appproxy import Circuit, FrontendMode, ProxyProtocol, RouteInfo
from ai.backend.core.proxy.routing import RouteKey, key_of

Tree = Mapping[str, str]
VERSION_KEY = "http/middlewares/backendai-version/headers/customRequestHeaders/X-Version"
VERSION_MIDDLEWARE = "backendai-version@etcd"
_RETRY, _TRANSPORT = "backendai-retry", "backendai"
_FAILURES, _EJECTED_S = 2, 2
_ATTEMPTS = _FAILURES + 2
"""A request that reaches no server goes to another one, after the failures that take the first one out."""
_GATE_FIELDS = ("Cookie", "Authorization", "X-Backendai-Token")
_DROPPED_FIELDS = r"^(?i)(forwarded|.*_.*)$"
"""Fields that apps never get: those that Traefik does not make anew, and names that some servers read as others."""
DOMAIN_ENTRY_POINT = "domainproxy"


class TreeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the settings that Traefik's configuration needs: two addresses of this worker, the domain, and timeouts.

    ``gate`` is the URL of the gate, and ``relay`` takes connections with a PROXY header. ``domain`` begins with a dot,
    None with a port for each circuit.
    """

    gate: str
    relay: str
    domain: str | None = None
    connect_s: float = 10.0
    first_byte_s: float = 600.0


def router_name(circuit: Circuit) -> str:
    """Returns the name under which a circuit's routers and services are stored in Traefik's configuration."""
    return f"c{circuit.id.hex}"


def entry_point_of(circuit: Circuit) -> str:
    """Returns the name of Traefik's entry point (listening address) at which clients reach a circuit."""
    return f"portproxy_{circuit.port}" if circuit.frontend_mode is FrontendMode.PORT else DOMAIN_ENTRY_POINT


def shared_tree(options: TreeOptions) -> dict[str, str]:
    """Returns the configuration keys that all circuits share.

    Connections to apps are not kept: each one that is open is a request, by which requests are counted.
    """
    transport_key = f"http/serversTransports/{_TRANSPORT}"
    return {
        f"{transport_key}/maxIdleConnsPerHost": "-1",
        f"{transport_key}/forwardingTimeouts/dialTimeout": f"{options.connect_s:g}s",
        f"{transport_key}/forwardingTimeouts/responseHeaderTimeout": f"{options.first_byte_s:g}s",
        f"http/middlewares/{_RETRY}/retry/attempts": str(_ATTEMPTS),
    }


def routes_with_weights(routes: Sequence[RouteInfo]) -> list[tuple[RouteInfo, int]]:
    """Returns the routes that get requests, with their weights."""
    weights = weights_of({key_of(route): route.traffic_ratio for route in routes})
    return [(route, weights[key_of(route)]) for route in routes if weights[key_of(route)] > 0]


def http_tree(circuit: Circuit, addresses: Mapping[RouteKey, str], permit_cookie: str, options: TreeOptions) -> Tree:
    """Returns the configuration keys by which Traefik sends the requests of a circuit to the given addresses.

    Traefik asks the worker first whether a request is permitted.
    """
    name = router_name(circuit)
    router_key, service_key, gate_key = (
        f"http/routers/{name}",
        f"http/services/{name}/loadBalancer",
        f"http/middlewares/{name}",
    )
    rule = "PathPrefix(`/`)" if options.domain is None else f"Host(`{circuit.subdomain}{options.domain}`)"
    routes = routes_with_weights(circuit.route_info)
    is_equal = len({weight for _, weight in routes}) <= 1
    tree = {
        f"{router_key}/rule": rule,
        f"{router_key}/entryPoints": entry_point_of(circuit),
        f"{router_key}/service": name,
        f"{router_key}/middlewares": f"{name},{_RETRY}",
        f"{gate_key}/forwardAuth/address": f"{options.gate}/{circuit.id.hex}",
        f"{gate_key}/forwardAuth/preserveLocationHeader": "true",
        f"{gate_key}/forwardAuth/authResponseHeadersRegex": _DROPPED_FIELDS,
        f"{gate_key}/forwardAuth/authResponseHeaders": ",".join(_GATE_FIELDS),
        f"{gate_key}/forwardAuth/addAuthCookiesToResponse": permit_cookie,
        f"{service_key}/serversTransport": _TRANSPORT,
        f"{service_key}/strategy": "p2c" if is_equal else "wrr",
    }
    if len(routes) > 1:  # the only one is used whatever it answers
        tree[f"{service_key}/passiveHealthCheck/maxFailedAttempts"] = str(_FAILURES)
        tree[f"{service_key}/passiveHealthCheck/failureWindow"] = f"{_EJECTED_S}s"
    for i, (route, weight) in enumerate(routes):
        tree[f"{service_key}/servers/{i}/url"] = f"http://{addresses[key_of(route)]}"
        if not is_equal:
            tree[f"{service_key}/servers/{i}/weight"] = str(weight)
    return tree


def tcp_tree(circuit: Circuit, addresses: Mapping[RouteKey, str]) -> Tree:
    """Returns the configuration keys by which Traefik spreads the connections of a raw TCP circuit over its routes.

    ``addresses`` holds the address of each route.
    """
    name = router_name(circuit)
    service_key = f"tcp/services/{name}/loadBalancer"
    tree = _tcp_router_tree(circuit)
    tree |= {
        f"{service_key}/servers/{i}/address": addresses[key_of(route)]
        for i, (route, _) in enumerate(routes_with_weights(circuit.route_info))
    }
    networks = [network.strip() for network in (circuit.allowed_client_ips or "").split(",") if network.strip()]
    if circuit.allowed_client_ips is not None:
        tree[f"tcp/routers/{name}/middlewares/0"] = name
        tree |= {f"tcp/middlewares/{name}/ipAllowList/sourceRange/{i}": network for i, network in enumerate(networks)}
    return tree


def relay_tree(circuit: Circuit, options: TreeOptions) -> Tree:
    """Returns the configuration keys by which Traefik passes a circuit's connections to this worker's relay address."""
    service = f"tcp/services/{router_name(circuit)}/loadBalancer"
    return {
        **_tcp_router_tree(circuit),
        f"{service}/servers/0/address": options.relay,
        f"{service}/proxyProtocol/version": "2",
    }


def _tcp_router_tree(circuit: Circuit) -> dict[str, str]:
    name = router_name(circuit)
    router = f"tcp/routers/{name}"
    return {
        f"{router}/rule": "HostSNI(`*`)",
        f"{router}/entryPoints/0": entry_point_of(circuit),
        f"{router}/service": name,
    }


def is_tcp(circuit: Circuit) -> bool:
    return circuit.protocol is ProxyProtocol.TCP
