"""The replicas of a model service hold the devices of its claim, one after the other and after restarts."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from ai.backend.client.session import Session
from tests.e2e.test_model_service import session_of
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

DEVICE = "mock.device"
RESOURCES = {"cpu": 1, "mem": "128m"}
SERVER = """
import http.server, json, os, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"started": STARTED, **{name: os.environ.get(name) for name in NAMES}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

STARTED = str(time.time_ns())
NAMES = ("MOCK_VISIBLE_DEVICES", "BACKENDAI_DEVICE_CLAIM", "BACKENDAI_SESSION_ID")
http.server.HTTPServer(("127.0.0.1", int(os.environ["BACKEND_SERVICE_PORT"])), Handler).serve_forever()
"""
COMMAND = ["python3", "/models/server.py"]
DEFINITION = {
    "models": [
        {
            "name": "holder",
            "model_path": "/models",
            "service": {"start_command": COMMAND, "health_check": {"interval": 1}},
        }
    ]
}
IN_TURN = {"kind": "rolling", "max_surge": 0, "max_unavailable": 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Runs two mock devices, and the folder of a model that answers what it holds."""
    first, folder = free_port(then=9), tmp_path_factory.mktemp("service-claims")
    consent = folder / "agent.toml"  # for hosts where sessions have no networks of their own
    consent.write_text("[services]\nshared-network = true\n")
    (folder / "server.py").write_text(SERVER)
    (folder / "model-definition.yaml").write_text(json.dumps(DEFINITION))
    options = ("--mock", "--app-ports", f"{first}-{first + 9}", "--agent-config", str(consent))
    with running_cluster(folder / "data", *options) as cluster:
        cluster.run("vfolder", "create", "holder", check=True)
        files = [str(folder / name) for name in ("server.py", "model-definition.yaml")]
        cluster.run("vfolder", "upload", "holder", *files, "-b", str(folder), check=True)
        yield cluster


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Session]:
    with session_of(cluster) as api:
        yield api


def replica_of(service: Any) -> str | None:
    """Returns the session of the ready replica."""
    routes = service.describe()["active_routes"]
    return next((str(route["session_id"]) for route in routes if route["status"] == "ready"), None)


def ask(url: str, token: str) -> dict[str, str]:
    """Returns what the replica says it has; nothing while none answers."""
    request = urllib.request.Request(f"{url}/", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:  # of the cluster that the test runs
            answer: dict[str, str] = json.load(reply)
            return answer
    except (OSError, ValueError):
        return {}


def held(api: Session, claim: str) -> list[str]:
    return [*api.DeviceClaim(claim).info()["devices"].get(DEVICE, {})]


@pytest.mark.timeout(240)
def test_each_replica_of_a_service_holds_the_devices_of_its_claim(cluster: Cluster, api: Session) -> None:
    api.DeviceClaim.create("kept", resources={DEVICE: 1})
    service = api.Service.create(*("python", "holder", 1), service_name="holding", resources=RESOURCES, claim="kept")
    first = wait_until(lambda: replica_of(service), timeout_s=60, what=f"a ready replica\n{cluster.log()}")
    url = wait_until(lambda: service.info()["url"], timeout_s=60, what="the URL")
    token = service.generate_api_token("1h")["token"]
    (device,) = held(api, "kept")
    answer = wait_until(lambda: ask(url, token), timeout_s=30, what="an answer of the replica")
    assert (answer["MOCK_VISIBLE_DEVICES"], answer["BACKENDAI_DEVICE_CLAIM"]) == (device, "kept")
    assert api.DeviceClaim("kept").info()["status"] == "IN_USE"

    # A restart in place, as its owner or a failed attempt causes it: the same device, in the same session.
    api.ComputeSession(first).restart()
    again = wait_until(
        lambda: (now := ask(url, token)) and now["started"] != answer["started"] and now,
        timeout_s=60,
        what=f"the restarted server\n{cluster.log()}",
    )
    assert (again["MOCK_VISIBLE_DEVICES"], again["BACKENDAI_SESSION_ID"]) == (device, first)
    assert (held(api, "kept"), replica_of(service)) == ([device], first)

    # Its end: the next replica gets the same device, which nobody else had meanwhile.
    slots = {**RESOURCES, DEVICE: 1}
    other = api.ComputeSession.get_or_create("python", name="other", resources=slots)
    assert other.status == "RUNNING"
    api.ComputeSession(first).destroy(forced=True)
    second = wait_until(lambda: _other(replica_of(service), first), timeout_s=90, what=f"another\n{cluster.log()}")
    assert held(api, "kept") == [device]
    answer = wait_until(lambda: ask(url, token), timeout_s=30, what="an answer of the next replica")
    assert (answer["MOCK_VISIBLE_DEVICES"], answer["BACKENDAI_SESSION_ID"]) == (device, second)
    refused = api.ComputeSession.explain_request("python", resources=slots)
    assert (refused["verdict"], refused["reason"]) == ("waits", "insufficient-resource"), "both devices are held"
    other.destroy(forced=True)
    service.delete()


def _other(replica: str | None, than: str) -> str | None:
    return replica if replica != than else None
