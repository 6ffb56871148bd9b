"""Requests that openapi.json allows and forbids, to a live cluster: each status, header and field is as declared.

``OPENAPI_EXAMPLES`` is the number of fuzzed requests for each operation, ``OPENAPI_SEED`` another seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.signed_requests import send

CONFIG = Path(__file__).parents[1] / "data/schemathesis.toml"
EXAMPLES = os.environ.get("OPENAPI_EXAMPLES", "3")
SEED = os.environ.get("OPENAPI_SEED", "1")
MIN_OPERATIONS = 178
MIN_LINKED_OPERATIONS = 5
"""Of the phase that goes on from replies, by the links of the document."""

CREATE_USER = "mutation($email: String!, $props: UserInput!) { create_user(email: $email, props: $props) { ok msg } }"
CREATE_KEYPAIR = (
    "mutation($email: String!, $props: KeyPairInput!)"
    " { create_keypair(props: $props, user_id: $email) { ok msg keypair { access_key secret_key } } }"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


@pytest.fixture
def fuzzed_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for one test alone: whatever is sent changes and deletes its objects, also its configuration."""
    with running_cluster(tmp_path / "data", "--mock") as cluster:
        yield cluster


def mutate(environment: Mapping[str, str], query: str, email: str, props: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the reply of the only field of a mutation."""
    variables = {"email": email, "props": props}
    answer = send(environment, "POST", "/admin/gql", query=query, variables=variables).json()
    (reply,) = answer["data"].values()
    assert reply["ok"], answer
    return dict(reply)


def make_caller(cluster: Cluster, role: str) -> dict[str, str]:
    """Makes a user with a keypair of many requests, and objects of theirs; returns their environment."""
    admin, email = cluster.environment(admin=True), f"{role}@fuzzed"
    props: dict[str, Any] = {"password": "correct horse battery", "role": role, "domain_name": "default"}
    mutate(admin, CREATE_USER, email, props)
    props = {"is_active": True, "resource_policy": "default", "rate_limit": 1_000_000}
    pair = mutate(admin, CREATE_KEYPAIR, email, props)["keypair"]
    keys = {"BACKEND_ACCESS_KEY": pair["access_key"], "BACKEND_SECRET_KEY": pair["secret_key"]}
    environment = {**admin, **keys}
    objects: dict[str, dict[str, Any]] = {
        "/folders": {"name": "fuzzed-folder"},
        "/session": {"image": "python", "name": "fuzzed-session", "config": {"resources": {"cpu": 1, "mem": "128m"}}},
    }
    for path, body in objects.items():
        reply = send(environment, "POST", path, **body)
        assert reply.status_code == 201, reply.text
    return environment


@pytest.mark.parametrize(
    ("role", "phases"),
    [
        ("superadmin", "examples,coverage"),
        ("superadmin", "fuzzing"),
        ("superadmin", "stateful"),
        ("admin", "fuzzing"),
        ("user", "fuzzing"),
    ],
)
def test_replies_are_as_declared(fuzzed_cluster: Cluster, tmp_path: Path, role: str, phases: str) -> None:
    environment = make_caller(fuzzed_cluster, role)
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
    command += [f"{environment['BACKEND_ENDPOINT']}/openapi.json", "--phases", phases, "--seed", SEED]
    command += ["--max-examples", EXAMPLES, "--report", "json", "--report-json-path", str(report)]
    done = subprocess.run(
        command,
        env={**environment, "SCHEMATHESIS_HOOKS": "tests.support.openapi_hooks"},
        cwd=CONFIG.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}\n{fuzzed_cluster.log()[-5_000:]}"
    results: dict[str, Any] = json.loads(report.read_text())
    operations = results["operations"]
    minimum = MIN_LINKED_OPERATIONS if phases == "stateful" else MIN_OPERATIONS
    assert operations["total"] >= MIN_OPERATIONS
    assert operations["tested"] >= minimum, operations
    assert phases == "stateful" or operations["tested"] == operations["total"]
    assert {name: results["phases"][name]["status"] for name in phases.split(",")} == dict.fromkeys(
        phases.split(","), "success"
    )
    assert results["test_cases"]["generated"] >= minimum
