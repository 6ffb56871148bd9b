"""The secrets of the example files, which packages install, protect nothing that others can reach."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.appproxy.coordinator.config.settings import CoordinatorSettings
from ai.backend.appproxy.worker.config.settings import WorkerSettings
from ai.backend.storage.config.settings import StorageSettings

EXAMPLES = Path(__file__).parents[3] / "deploy/config"
CASES: list[tuple[type[BaseModel], str, tuple[str, ...], tuple[str, ...]]] = [
    (StorageSettings, "storage-proxy", ("api", "client", "service-addr", "host"), ("storage-proxy", "secret")),
    (StorageSettings, "storage-proxy", ("api", "manager", "service-addr", "host"), ("api", "manager", "secret")),
    (CoordinatorSettings, "proxy-coordinator", ("proxy_coordinator", "bind_addr", "host"), ("secrets", "api_secret")),
    (WorkerSettings, "proxy-worker", ("proxy_worker", "port_proxy", "bind_host"), ("secrets", "api_secret")),
    (AgentSettings, "agent", ("watcher", "service-addr", "host"), ("watcher", "token")),
]


def _put(document: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    for name in path[:-1]:
        document = document[name]
    document[path[-1]] = value


@pytest.mark.parametrize(("kind", "file", "host", "secret"), CASES, ids=[".".join(case[3]) for case in CASES])
@pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.7", "::", "storage.example"])
def test_an_example_secret_is_refused_where_others_come_from(
    kind: type[BaseModel], file: str, host: tuple[str, ...], secret: tuple[str, ...], address: str
) -> None:
    document = tomllib.loads((EXAMPLES / f"{file}.toml").read_text())
    kind.model_validate(document)
    _put(document, host, address)
    with pytest.raises(ValidationError, match="is still that of the example"):
        kind.model_validate(document)
    _put(document, secret, "0123456789abcdef" * 4)
    kind.model_validate(document)
