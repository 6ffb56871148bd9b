"""Chooses workers and slots for circuits, and checks the values that browsers send."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlsplit
from uuid import UUID

from ai.backend.appproxy.coordinator.circuits.model import SlotTaken
from ai.backend.appproxy.coordinator.workers.model import Worker
from ai.backend.common.errors import InvalidInput
from ai.backend.common.wire.appproxy import AppMode, FrontendMode, ProxyProtocol, Slot

_LABEL_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME_BYTES = 10
_MAX_NETWORKS = 32


def suitable_workers(
    workers: Sequence[Worker],
    used_slots: Mapping[UUID, Sequence[Slot]],
    *,
    mode: AppMode,
    protocol: ProxyProtocol,
    tags: Mapping[str, str],
    port: int | None = None,
    subdomain: str | None = None,
) -> list[Worker]:
    """Returns the living workers that may serve an app and have a free slot for it.

    Workers with matching filters come first, then workers with the largest share of free slots.
    """

    def load(worker: Worker) -> float:
        return 0.0 if worker.capacity < 0 else len(used_slots.get(worker.id, ())) / worker.capacity

    accepted_workers = [
        worker
        for worker in workers
        if worker.nodes > 0
        and mode in worker.accepted_traffics
        and worker.protocol == protocol
        and (not worker.filtered_apps_only or worker.matches(tags))
        and load(worker) < 1
        and (port is None or worker.has_slot(port, None))
        and (subdomain is None or worker.frontend_mode is FrontendMode.WILDCARD)
    ]
    return sorted(accepted_workers, key=lambda worker: (not worker.matches(tags), load(worker), worker.authority))


def choose_port(worker: Worker, used_slots: Sequence[Slot], resting_ports: frozenset[int]) -> int:
    """Returns a random free port of a worker. Raises SlotTaken if it has none."""
    first_port, last_port = worker.port_range or (1, 0)
    occupied_ports = {slot.port for slot in used_slots} | resting_ports
    free_ports = [port for port in range(first_port, last_port + 1) if port not in occupied_ports]
    if not free_ports:
        raise SlotTaken("All ports of the worker are in use, or rest.")
    return secrets.choice(free_ports)


def random_name() -> str:
    """Returns a random subdomain name with 80 random bits."""
    return f"a{secrets.token_hex(_NAME_BYTES)}"


def check_subdomain(name: str) -> str:
    """Checks and returns a subdomain name of one DNS label. Raises InvalidInput."""
    if _LABEL_PATTERN.fullmatch(name) is None or name.startswith("xn--"):
        raise InvalidInput("subdomain: not one label of a-z, 0-9 and -", data={"subdomain": "malformed"})
    return name


def check_networks(text: str) -> str:
    """Checks a comma-separated list of IP networks, and returns the list in canonical form. Raises InvalidInput."""
    network_texts = [network_text.strip() for network_text in text.split(",") if network_text.strip()]
    try:
        if not 0 < len(network_texts) <= _MAX_NETWORKS:
            raise ValueError
        return ",".join(str(ipaddress.ip_network(network_text, strict=False)) for network_text in network_texts)
    except ValueError:
        message = f"allowed_client_ips: 1 to {_MAX_NETWORKS} networks as 192.0.2.0/24, separated by commas"
        raise InvalidInput(message, data={"allowed_client_ips": "malformed"}) from None


def check_redirect(target: str) -> str:
    """Returns a path inside an app with its query and fragment, rebuilt from its parsed parts. Raises InvalidInput.

    It begins with exactly one slash and has no backslash and no control character: a browser leads any other one
    to another host (serving anchors 11, open redirect).
    """
    is_path = target.startswith("/") and target[1:2] not in ("/", "\\")
    if (
        not is_path
        or "\\" in target
        or any(ord(character) < 0x20 or ord(character) == 0x7F for character in target)
        or len(target) > 2048
    ):
        raise InvalidInput("redirect: a path that begins with one slash", data={"redirect": "malformed"})
    try:
        url_parts = urlsplit(f"http://app{target}")
        path, query, fragment = (
            quote(url_part, safe="/%:@!$&'()*+,;=-._~?[]{}|")
            for url_part in (url_parts.path, url_parts.query, url_parts.fragment)
        )
    except (ValueError, UnicodeEncodeError):
        raise InvalidInput("redirect: not a path", data={"redirect": "malformed"}) from None
    return path + (f"?{query}" if query else "") + (f"#{fragment}" if fragment else "")
