"""A real registry for tests: Debian's `docker-registry` on loopback, with a folder of its own."""

from __future__ import annotations

import base64
import json
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.support.docker_engine import DockerEngine

USER, PASSWORD = "reader", "pass word"
_HTPASSWD = "reader:$2b$04$DmpV2y9N99c1fy1RH5VPIuWE/5lTZ8xEPsQ3SRn5IH2rB8rTXTNR2\n"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
NEXT_PASSWORD = "next word"
_NEXT_HTPASSWD = "reader:$2b$04$DmpV2y9N99c1fy1RH5VPIuWpVQTnX4be8zH9rlIi.cQBSvhzV/VIC\n"
_START_S = 30.0


@dataclass
class DockerRegistry:
    """A running registry. ``is_closed`` asks everybody for :data:`USER` and :data:`PASSWORD`."""

    port: int
    directory: Path
    is_closed: bool
    process: subprocess.Popen[bytes] | None = None
    certificate: Path | None = None
    password: str = PASSWORD

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{self.name}"

    def start(self) -> None:
        """Returns once it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", str(self.directory / "config.yml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"docker-registry did not start: {(self.directory / 'log').read_text()[-1000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
            self.process = None

    def rotate(self) -> None:
        """Asks for :data:`NEXT_PASSWORD` from now on."""
        self.stop()
        (self.directory / "htpasswd").write_text(_NEXT_HTPASSWD)
        self.password = NEXT_PASSWORD
        self.start()

    def answers(self) -> bool:
        try:
            return self.call("GET", "/v2/")[0] == 200
        except OSError:
            return False

    def call(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/octet-stream"
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = path if path.startswith("http") else f"{self.url}{path}"
        request = urllib.request.Request(
            url, body, {"Content-Type": kind, "Accept": f"{MANIFEST}, {INDEX}"}, method=method
        )
        if self.is_closed:
            login = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        try:
            context = ssl.create_default_context(cafile=self.certificate) if self.certificate else None
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def put_blob(self, repository: str, content: bytes) -> str:
        digest = f"sha256:{sha256(content).hexdigest()}"
        status, headers, _ = self.call("POST", f"/v2/{repository}/blobs/uploads/", b"")
        assert status == 202
        joint = "&" if "?" in headers["Location"] else "?"
        status, _, _ = self.call("PUT", f"{headers['Location']}{joint}digest={digest}", content)
        assert status == 201
        return digest

    def put_image(
        self, repository: str, *tags: str, labels: Mapping[str, str] | None = None, architecture: str = "amd64"
    ) -> str:
        """An image of one tiny layer, which no engine needs; the digest of its manifest."""
        layer = b"not really a layer"
        config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {"Labels": dict(labels)} if labels else {},
                "rootfs": {"type": "layers", "diff_ids": []},
            }
        ).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(config), "digest": self.put_blob(repository, config)},
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(layer),
                    "digest": self.put_blob(repository, layer),
                }
            ],
        }
        return self._put_manifest(repository, tags, manifest, MANIFEST)

    def put_layers(self, repository: str, *layers: bytes) -> str:
        """An OCI artifact of these layers; the digest of its manifest."""
        config = b"{}"
        listed = [
            {"mediaType": "application/octet-stream", "size": len(layer), "digest": self.put_blob(repository, layer)}
            for layer in layers
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(config), "digest": self.put_blob(repository, config)},
            "layers": listed,
        }
        return self._put_manifest(repository, (), manifest, OCI_MANIFEST)

    def put_index(self, repository: str, tag: str, children: Mapping[str, str], size: int = 500) -> str:
        """An index of images that are there: architecture -> digest."""
        listed = [
            {"mediaType": MANIFEST, "size": size, "digest": digest, "platform": {"os": "linux", "architecture": name}}
            for name, digest in children.items()
        ]
        return self._put_manifest(
            repository, (tag,), {"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}, INDEX
        )

    def _put_manifest(self, repository: str, tags: tuple[str, ...], manifest: Mapping[str, Any], kind: str) -> str:
        body = json.dumps(manifest).encode()
        digest = f"sha256:{sha256(body).hexdigest()}"
        for reference in tags or (digest,):
            status, _, said = self.call("PUT", f"/v2/{repository}/manifests/{reference}", body, kind)
            assert status == 201, said
        return digest

    def remove(self, repository: str, digest: str) -> None:
        status, _, said = self.call("DELETE", f"/v2/{repository}/manifests/{digest}")
        assert status == 202, said

    def push(self, engine: DockerEngine, source: str, repository: str, tag: str) -> str:
        """An image of the engine, under a name of this registry, which is gone from the engine afterwards."""
        name = f"{self.name}/{repository}"
        assert engine.call("POST", f"/images/{source}/tag?repo={name}&tag={tag}")[0] == 201
        login = {"username": USER, "password": self.password} if self.is_closed else {}
        header = base64.urlsafe_b64encode(json.dumps(login).encode()).decode()
        status, said = engine.call("POST", f"/images/{name}/push?tag={tag}", headers={"X-Registry-Auth": header})
        assert status == 200, said
        assert b'"error"' not in said, said
        assert engine.call("DELETE", f"/images/{name}:{tag}")[0] == 200
        return f"{name}:{tag}"


@contextmanager
def running_registry(
    directory: Path,
    *,
    is_closed: bool = False,
    certificate: tuple[Path, Path] | None = None,
    address: str = "127.0.0.1",
) -> Iterator[DockerRegistry]:
    """A registry with nothing in it, listening at ``address``; with a certificate and its key it speaks TLS only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    directory.mkdir(parents=True)
    auth = ""
    if is_closed:
        (directory / "htpasswd").write_text(_HTPASSWD)
        auth = f"auth: {{htpasswd: {{realm: test, path: {directory}/htpasswd}}}}\n"
    tls = f", tls: {{certificate: {certificate[0]}, key: {certificate[1]}}}" if certificate else ""
    (directory / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: warn, accesslog: {{disabled: true}}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {directory}/data}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: '{address}:{port}'{tls}}}\n{auth}"
    )
    registry = DockerRegistry(port, directory, is_closed, certificate=certificate[0] if certificate else None)
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()
