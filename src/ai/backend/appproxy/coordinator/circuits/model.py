"""Defines the values of circuits, of slots, and of the set-ups that become circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from ai.backend.common.errors import Conflict
from ai.backend.common.wire.appproxy import Circuit, GatewayRoute, ProxyProtocol


class SlotTaken(Conflict, code="slot-taken", title="This port or name is in use, or reserved for somebody else."): ...


class StoredCircuit(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a circuit with its statistics. ``version`` is its worker's version at the circuit's last change."""

    circuit: Circuit
    version: int
    requests: int
    last_used: datetime
    failure: str | None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the progress of a circuit's delivery.

    ``acked`` are the versions that the linked nodes of its worker serve.
    """

    worker_id: UUID
    version: int
    acked: Sequence[int]
    nodes: int
    failure: str | None


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a manager's permission for one browser to reach a service of a session."""

    session_id: UUID
    user_id: UUID
    group_id: str
    domain_name: str
    access_key: str | None = None
    kernel_host: str
    kernel_port: int
    gateway: GatewayRoute | None = None
    app: str | None = None

    @property
    def tags(self) -> Mapping[str, str]:
        """Returns the values with which the app filters of workers are compared."""
        values = {
            "session.id": str(self.session_id),
            "session.user_uuid": str(self.user_id),
            "session.group_id": self.group_id,
            "session.domain_name": self.domain_name,
            "session.access_key": self.access_key,
            "app.name": self.app,
        }
        return {name: value for name, value in values.items() if value}


class AppRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the request by which a browser opens an app of a session, with the token that the manager gave it."""

    app: str
    protocol: ProxyProtocol
    redirect: str = "/"
    no_reuse: bool = False
    port: int | None = None
    subdomain: str | None = None
    open_to_public: bool = False
    allowed_client_ips: str | None = None
    envs: Mapping[str, str | None] | None = None
    args: str | None = None


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a circuit that its worker serves, and the URL that signs one browser in to the circuit, once."""

    circuit: Circuit
    url: str
    reused: bool
