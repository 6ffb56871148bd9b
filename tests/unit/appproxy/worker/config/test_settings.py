from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ai.backend.appproxy.worker.composition import frontend_of, registration_of
from ai.backend.appproxy.worker.config.settings import WorkerSettings
from ai.backend.common.wire.appproxy import FrontendMode

PUBLISHED = """
[redis]
addr = { host = "host.docker.internal", port = 8111 }

[proxy_worker]
coordinator_endpoint = "http://backend-ai-appproxy-coordinator:10200"
authority = "worker-1"
tls_listen = false
tls_advertised = false
frontend_mode = "port"
protocol = "http"
accepted_traffics = ["inference", "interactive"]
api_bind_addr = { host = "0.0.0.0", port = 10201 }
api_advertised_addr = { host = "backend-ai-appproxy-worker", port = 10201 }

[proxy_worker.port_proxy]
bind_host = "0.0.0.0"
advertised_host = "backend-ai-appproxy-worker"
bind_port_range = [10205, 10300]

[secrets]
api_secret = "some_api_secret_of_thirty-two_characters"
jwt_secret = "some_jwt_secret"

[permit_hash]
secret = "some_permit_hash_secret_of_32_characters"

[logging]
level = "INFO"
drivers = ["console"]

[debug]
enabled = true
"""


ETCD = {"namespace": "traefik", "addr": {"host": "127.0.0.1", "port": 8121}}
TRAEFIK = """
[proxy_worker]
authority = "worker-1"
frontend_mode = "traefik"

[proxy_worker.traefik]
api_port = 8080
frontend_mode = "port"
last_used_time_marker_directory = "/home/ubuntu/appproxy"

[proxy_worker.traefik.etcd]
namespace = "traefik"
addr = { host = "127.0.0.1", port = 8121 }

[proxy_worker.traefik.port_proxy]
advertised_host = "node.example.net"
port_range = [10205, 10209]

[secrets]
api_secret = "some_api_secret_of_thirty-two_characters"
"""


def settings(**process: Any) -> WorkerSettings:
    return WorkerSettings.model_validate({"proxy_worker": process, "secrets": {"api_secret": "x" * 32}})


def test_the_published_file_is_read_as_it_is() -> None:
    registration = registration_of(WorkerSettings.model_validate(tomllib.loads(PUBLISHED)), 10201)
    assert registration.hostname == "backend-ai-appproxy-worker"
    assert (registration.port_range, registration.api_port) == ((10205, 10300), 10201)


def test_slots_are_the_ports_that_browsers_use() -> None:
    ranges = {"bind_port_range": [20205, 20207], "advertised_port_range": [10205, 10207]}
    behind = settings(port_proxy=ranges)
    assert frontend_of(behind).ports == {10205: 20205, 10206: 20206, 10207: 20207}
    assert registration_of(behind, 10201).port_range == (10205, 10207)


def test_the_published_settings_of_traefik_are_read_as_they_are() -> None:
    read = WorkerSettings.model_validate(tomllib.loads(TRAEFIK))
    registration, frontend = registration_of(read, 10201), frontend_of(read)
    assert (registration.hostname, registration.port_range) == ("node.example.net", (10205, 10209))
    assert registration.frontend_mode is FrontendMode.PORT
    assert frontend.ports == {port: port for port in range(10205, 10210)}
    wildcard = {"frontend_mode": "wildcard", "wildcard_domain": {"domain": ".apps.example.net"}, "etcd": ETCD}
    process = settings(frontend_mode="traefik", traefik=wildcard, tls_advertised=True)
    registration = registration_of(process, 10201)
    assert (registration.frontend_mode, registration.wildcard_domain) == (FrontendMode.WILDCARD, ".apps.example.net")
    assert (registration.port_range, frontend_of(process).domain) == (None, ".apps.example.net")


def test_a_wildcard_worker_names_its_domain() -> None:
    wildcard = {"domain": ".apps.example.net", "bind_addr": {"host": "0.0.0.0", "port": 8443}, "advertised_port": 443}
    process = settings(frontend_mode="wildcard", wildcard_domain=wildcard, tls_advertised=True)
    registration, frontend = registration_of(process, 10201), frontend_of(process)
    assert (registration.frontend_mode, registration.port_range) == (FrontendMode.WILDCARD, None)
    assert (registration.wildcard_domain, registration.wildcard_port) == (".apps.example.net", 443)
    assert (frontend.port, frontend.is_secure) == (8443, True)


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        ({"frontend_mode": "traefik"}, "traefik.etcd"),
        ({"frontend_mode": "traefik", "traefik": {"etcd": ETCD, "frontend_mode": "wildcard"}}, "wildcard-domain"),
        ({"frontend_mode": "traefik", "traefik": {"etcd": ETCD}, "data_plane": "haproxy"}, "Traefik listens"),
        ({"frontend_mode": "traefik", "traefik": {"etcd": ETCD}, "authority": "a/b"}, "slash"),
        ({"frontend_mode": "wildcard"}, "wildcard-domain"),
        ({"frontend_mode": "wildcard", "wildcard_domain": {"domain": "apps.example"}}, "domain"),
        ({"tls_listen": True, "tls_advertised": True}, "tls-cert"),
        ({"tls_listen": True, "tls_cert": Path("c"), "tls_privkey": Path("k")}, "tls-advertised"),
        ({"protocol": "grpc"}, "grpc"),
        ({"protocol": "tcp", "frontend_mode": "wildcard", "wildcard_domain": {"domain": ".a.b"}}, "port"),
        ({"port_proxy": {"bind_port_range": [10300, 10205]}}, "lower port first"),
        ({"port_proxy": {"advertised_port_range": [1, 2]}}, "as many ports"),
        ({"port_proxy": {"bind_port_range": [0, 70000]}}, "bind"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(process: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        settings(**process)
    assert reason in str(refusal.value)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValidationError):
        WorkerSettings.model_validate({"secrets": {"api_secret": "short"}})
