"""Messages of the app proxy survive their encoding, and wrong values are refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.wire.appproxy import (
    INFERENCE_KEY,
    SETUP_KEY,
    Ack,
    AppMode,
    Change,
    Circuit,
    CircuitUsage,
    Counted,
    FrontendMode,
    GatewayRoute,
    ProxyProtocol,
    RouteInfo,
    State,
    ToCoordinator,
    ToWorker,
    UsageReport,
    WorkerRegistration,
    purpose_key,
)

ID = UUID(int=7)
ROUTE = RouteInfo(
    session_id=ID,
    kernel_host="10.0.0.2",
    kernel_port=6100,
    protocol=ProxyProtocol.HTTP,
    gateway=GatewayRoute(name="r-1", certificate="PEM"),
)
CIRCUIT = Circuit(
    id=ID,
    app="jupyterlab",
    protocol=ProxyProtocol.HTTP,
    worker=ID,
    app_mode=AppMode.INTERACTIVE,
    frontend_mode=FrontendMode.PORT,
    port=10205,
    user_id=ID,
    route_info=[ROUTE],
    session_ids=[ID],
    created_at="2026-11-23T00:00:00+00:00",
    updated_at="2026-11-23T00:00:00+00:00",
)
REGISTRATION = {
    "authority": "worker-1",
    "frontend_mode": "port",
    "protocol": "http",
    "hostname": "localhost",
    "api_port": 10201,
    "port_range": [10205, 10300],
}


@pytest.mark.parametrize(
    ("frame", "union"),
    [
        (State(version=3, circuits=[CIRCUIT]), ToWorker),
        (Change(version=4, set=[CIRCUIT], removed=[ID]), ToWorker),
        (Counted(sequence=2), ToWorker),
        (Ack(version=4, failed={ID: "the port is taken"}), ToCoordinator),
        (
            UsageReport(sequence=1, time=2.5, circuits=[CircuitUsage(id=ID, requests=3, last_used=1.5, open=1)]),
            ToCoordinator,
        ),
    ],
)
def test_every_frame_is_read_as_it_was_written(frame: msgspec.Struct, union: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(frame), type=union) == frame


def test_a_circuit_has_the_fields_of_the_specification() -> None:
    document = msgspec.to_builtins(CIRCUIT)
    assert {"id", "app", "protocol", "worker", "app_mode", "frontend_mode", "envs", "arguments"} < set(document)
    assert {"open_to_public", "allowed_client_ips", "port", "subdomain", "user_id", "endpoint_id"} < set(document)
    assert {"route_info", "session_ids", "created_at", "updated_at"} < set(document)
    assert document["route_info"][0]["kernel_port"] == 6100


@pytest.mark.parametrize(
    "change",
    [
        {"authority": ""},
        {"authority": "x" * 256},
        {"api_port": 0},
        {"port_range": [10205, 65536]},
        {"frontend_mode": "subdomain"},
        {"accepted_traffics": ["batch"]},
    ],
)
def test_a_wrong_registration_is_refused(change: dict[str, Any]) -> None:
    msgspec.convert(REGISTRATION, WorkerRegistration)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**REGISTRATION, **change}, WorkerRegistration)


def test_each_purpose_and_each_secret_has_a_key_of_its_own() -> None:
    keys = {purpose_key(secret, purpose) for secret in ("a" * 32, "b" * 32) for purpose in (SETUP_KEY, INFERENCE_KEY)}
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)
