"""Small stand-ins of Keystone, Glance and Nova for the real Cyborg and Placement, and a gate before Cyborg.

They speak what Cyborg, Placement and our driver use of them, over one port: ``/identity``, ``/image``, ``/compute``
and ``/accelerator``, which passes requests on to Cyborg, or refuses, delays or loses them as a test says.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

PROJECT = "0" * 31 + "a"
PASSWORDS = {"kube-acc": "accelerate", "cyborg": "services", "guest": "guest"}
ROLES = {"kube-acc": ["admin", "member", "reader", "service"], "cyborg": ["admin", "service"], "guest": ["reader"]}
_EXPIRES = "2099-01-01T00:00:00.000000Z"


@dataclass
class Fault:
    """What the gate does with a request to Cyborg whose method and path match. ``status`` answers instead of Cyborg;
    ``lost``: Cyborg gets the request, and nobody its answer; ``hold``: the request waits until it is set."""

    method: str
    path: str = ""
    status: int = 0
    lost: bool = False
    hold: threading.Event | None = None
    times: int = 1_000_000


@dataclass
class StandIns:
    """``servers`` are Nova's: id -> (name, host). ``images`` are Glance's: id -> (attributes, bytes)."""

    cyborg_port: int = 0
    placement_port: int = 0
    port: int = 0
    servers: dict[str, tuple[str, str]] = field(default_factory=dict)
    images: dict[str, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    logins: int = 0
    is_nova_away: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def expire_tokens(self) -> None:
        self.tokens.clear()

    def fault_for(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.method == method and fault.path in path and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def catalog(self) -> list[dict[str, Any]]:
        urls = {
            "identity": f"{self.url}/identity",
            "image": f"{self.url}/image",
            "compute": f"{self.url}/compute/v2.1",
            "accelerator": f"{self.url}/accelerator/v2",
            "placement": f"http://127.0.0.1:{self.placement_port}",
        }
        return [
            {
                "id": kind,
                "type": kind,
                "name": kind,
                "endpoints": [
                    {"id": f"{kind}-{side}", "interface": side, "region": "one", "region_id": "one", "url": url}
                    for side in ("public", "internal", "admin")
                ],
            }
            for kind, url in urls.items()
        ]

    def token_body(self, user: str) -> dict[str, Any]:
        domain = {"id": "default", "name": "Default"}
        return {
            "token": {
                "methods": ["password"],
                "user": {"id": user, "name": user, "domain": domain, "password_expires_at": None},
                "audit_ids": ["a"],
                "expires_at": _EXPIRES,
                "issued_at": "2026-01-01T00:00:00.000000Z",
                "project": {"id": PROJECT, "name": "machines", "domain": domain},
                "is_domain": False,
                "roles": [{"id": role, "name": role} for role in ROLES[user]],
                "catalog": self.catalog(),
            }
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cloud: StandIns

    def log_message(self, *_: object) -> None: ...

    def _answer(self, status: int, body: Any = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content_Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _route(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length)
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b"".join(iter(self._chunk, b""))
        for prefix, handle in self._services.items():
            if self.path.startswith(prefix):
                handle(self, self.path.removeprefix(prefix), content)
                return
        self._answer(404, {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._route
        raise AttributeError(name)

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline(), 16)
        chunk = self.rfile.read(size)
        self.rfile.readline()
        return chunk

    def _user(self) -> str | None:
        return self.cloud.tokens.get(self.headers.get("X-Auth-Token", ""))

    def _identity(self, path: str, content: bytes) -> None:
        cloud, path = self.cloud, urlsplit(path).path
        if self.command == "POST" and path.endswith("/auth/tokens"):
            identity = json.loads(content)["auth"]["identity"]
            user, password = identity["password"]["user"]["name"], identity["password"]["user"]["password"]
            if PASSWORDS.get(user) != password:
                self._answer(401, {"error": {"code": 401, "message": "no", "title": "Unauthorized"}})
                return
            cloud.logins += 1
            token = uuid.uuid4().hex
            cloud.tokens[token] = user
            self._answer(201, cloud.token_body(user), X_Subject_Token=token)
        elif path.endswith("/auth/tokens"):
            subject = cloud.tokens.get(self.headers.get("X-Subject-Token", ""))
            if self._user() is None:
                self._answer(401, {"error": {"code": 401, "message": "no", "title": "Unauthorized"}})
            elif subject is None:
                self._answer(404, {"error": {"code": 404, "message": "no token", "title": "Not Found"}})
            else:
                self._answer(200, cloud.token_body(subject), X_Subject_Token=self.headers["X-Subject-Token"])
        else:
            version = {
                "id": "v3.14",
                "status": "stable",
                "links": [{"rel": "self", "href": f"{cloud.url}/identity/v3/"}],
                "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
                "updated": "2020-04-07T00:00:00Z",
            }
            body = {"version": version} if "v3" in path else {"versions": {"values": [version]}}
            self._answer(200 if "v3" in path else 300, body)

    def _image(self, path: str, content: bytes) -> None:
        cloud, url = self.cloud, urlsplit(path)
        parts = url.path.strip("/").split("/")
        if url.path in ("", "/", "/versions"):
            version = {"id": "v2.9", "status": "CURRENT", "links": [{"rel": "self", "href": f"{cloud.url}/image/v2/"}]}
            self._answer(300, {"versions": [version]})
        elif self._user() is None:
            self._answer(401, {})
        elif self.command == "POST" and parts == ["v2", "images"]:
            image_id = str(uuid.uuid4())
            attributes = json.loads(content) | {"id": image_id, "status": "queued", "owner": PROJECT}
            cloud.images[image_id] = (attributes, b"")
            self._answer(201, attributes)
        elif parts == ["v2", "images"]:
            wanted = {
                name: values[0] for name, values in parse_qs(url.query).items() if name not in ("limit", "marker")
            }
            images = [
                a for a, _ in cloud.images.values() if all(a.get(name) == value for name, value in wanted.items())
            ]
            self._answer(200, {"images": images, "first": "/v2/images", "schema": "/v2/schemas/images"})
        elif parts[2] not in cloud.images:
            self._answer(404, {})
        elif parts[-1] == "file" and self.command == "PUT":
            attributes, _ = cloud.images[parts[2]]
            if attributes["status"] != "queued":
                self._answer(409, {})
                return
            attributes |= {
                "status": "active",
                "size": len(content),
                "os_hash_algo": "sha512",
                "os_hash_value": hashlib.sha512(content).hexdigest(),
                "checksum": hashlib.md5(content).hexdigest(),
            }
            cloud.images[parts[2]] = (attributes, content)
            self._answer(204)
        elif parts[-1] == "file":
            self._answer(200, cloud.images[parts[2]][1], Content_Type="application/octet-stream")
        elif self.command == "DELETE":
            del cloud.images[parts[2]]
            self._answer(204)
        else:
            self._answer(200, cloud.images[parts[2]][0])

    def _compute(self, path: str, content: bytes) -> None:
        cloud, url = self.cloud, urlsplit(path)
        if cloud.is_nova_away:
            self._answer(503, {})
        elif url.path.rstrip("/") in ("", "/v2.1"):
            version = {
                "id": "v2.1",
                "status": "CURRENT",
                "version": "2.96",
                "min_version": "2.1",
                "links": [{"rel": "self", "href": f"{cloud.url}/compute/v2.1/"}],
            }
            self._answer(200, {"version": version} if "v2.1" in url.path else {"versions": [version]})
        elif self._user() is None:
            self._answer(401, {})
        elif url.path.endswith("/os-server-external-events"):
            events = json.loads(content)["events"]
            cloud.events += events
            if any(event["server_uuid"] not in cloud.servers for event in events):
                self._answer(404, {"itemNotFound": {"code": 404, "message": "no such instance"}})
                return
            self._answer(200, {"events": [event | {"code": 200} for event in events]})
        elif url.path.endswith("/servers/detail"):
            name_filter = parse_qs(url.query).get("name", [""])[0].strip("^$").replace("\\", "")
            servers = [
                {"id": server_id, "name": name, "status": "ACTIVE", "OS-EXT-SRV-ATTR:host": host}
                for server_id, (name, host) in cloud.servers.items()
                if name_filter in name
            ]
            self._answer(200, {"servers": servers})
        else:
            self._answer(404, {})

    def _accelerator(self, path: str, content: bytes) -> None:
        fault = self.cloud.fault_for(self.command, path)
        if fault is not None and fault.hold is not None:
            fault.hold.wait(60)
        if fault is not None and fault.status:
            self._answer(fault.status, {"error_message": json.dumps({"faultstring": "as the test wants it"})})
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.cloud.cyborg_port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        try:
            connection.request(self.command, path, content or None, headers)
            answer = connection.getresponse()
            body = answer.read()
        except OSError:
            self.close_connection = True  # as if Cyborg itself broke the connection
            return
        finally:
            connection.close()
        if fault is not None and fault.lost:
            self.close_connection = True
            return
        self._answer(answer.status, body, Content_Type=answer.headers.get("Content-Type", "application/json"))

    _services: ClassVar[dict[str, Callable[..., None]]] = {
        "/identity": _identity,
        "/image": _image,
        "/compute": _compute,
        "/accelerator": _accelerator,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error."""


@contextmanager
def standing_in() -> Iterator[StandIns]:
    """Serves until the end of the block."""
    cloud = StandIns()
    handler = type("Handler", (_Handler,), {"cloud": cloud})
    server = _Server(("127.0.0.1", 0), handler)
    cloud.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
