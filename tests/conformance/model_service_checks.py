"""What the published client must be able to do with model services (client wire contract 2.8)."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.conformance.checks import Scene, ended, until

_MODEL = Path(__file__).resolve().parents[2] / "docs" / "examples" / "embedding-model"
_PATIENCE_S = 30.0


def check_model_service(scene: Scene) -> None:
    """A service of its creation by the published command to its end; its URL is called with a published token."""
    scene.server.VFolder.create("conf-model")
    folder = scene.server.VFolder("conf-model")
    folder.upload([path for path in _MODEL.iterdir() if path.is_file()], basedir=_MODEL)
    created = ended(
        scene.client(
            *("service", "create", "-t", "conf-service", "-r", "cpu=1", "-r", "mem=256m", "python", "conf-model", "1")
        )
    )
    assert "conf-service" in created.out, created.all
    service = scene.server.Service("conf-service")
    try:
        until(lambda: service.describe()["status"] == "healthy" and service.info()["url"], "the service is ready")
        url = str(service.info()["url"])
        assert "conf-service" in ended(scene.client("service", "list")).out
        shown = ended(scene.client("service", "info", "conf-service")).out
        assert url in shown, shown
        token = ended(scene.client("service", "generate-token", "conf-service", "1d", "-q")).out.strip()
        request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"BackendAI {token}"})
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as reply:
            assert b"tiny-embedding" in reply.read()
        route = service.describe()["active_routes"][0]["route_id"]
        ended(scene.client("service", "update-traffic-ratio", "conf-service", route, "0.5"))
        assert service.describe()["active_routes"][0]["traffic_ratio"] == 0.5
        ended(scene.client("service", "sync", "conf-service"))
        ended(scene.client("service", "scale", "conf-service", "0"))
        until(lambda: service.describe()["active_routes"] == [], "the replica has ended")
    finally:
        ended(scene.client("service", "rm", "conf-service"))
    until(lambda: not scene.server.Service.list(), "the service has ended")
    folder.delete()
