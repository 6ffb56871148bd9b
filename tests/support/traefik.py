"""Traefik as an operator runs it: a static configuration of spec 03-16, with etcd."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ai.backend.infra.tls.certificates import create_server_identity
from tests.support import wheels
from tests.support.cluster import wait_until

_CERTIFICATE_FILE = "certificate.yml"
_CERTIFICATE = """tls:
  stores:
    default:
      defaultCertificate: {certFile: default.crt, keyFile: default.key}
"""


def static_configuration(
    *, api_port: int, etcd: str, authority: str, ports: Iterable[int] = (), domain_port: int | None = None
) -> str:
    """Returns the file ``traefik.yml``."""
    points = {"traefik": f"127.0.0.1:{api_port}", **{f"portproxy_{port}": f"127.0.0.1:{port}" for port in ports}}
    if domain_port is not None:
        points["domainproxy"] = f"127.0.0.1:{domain_port}"
    lines = ["entryPoints:"]
    for name, address in points.items():
        lines += [f"  {name}:", f"    address: {address}"]
        lines += ["    http: {encodedCharacters: {allowEncodedSlash: true}}"]  # as JupyterLab's paths need it
    lines += ["api:", "  insecure: true", "providers:", "  providersThrottleDuration: 0"]
    lines += [
        f"  file: {{filename: {_CERTIFICATE_FILE}}}",
        "  etcd:",
        f"    rootKey: traefik/worker_{authority}",
        f"    endpoints: ['{etcd}']",
    ]
    lines += ["global:", "  checkNewVersion: false", "  sendAnonymousUsage: false"]
    return "\n".join(lines) + "\n"


@contextmanager
def running_traefik(folder: Path, configuration: str, *, api_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Starts Traefik, and ends it. It has a default certificate: without, it makes an RSA key with each change."""
    folder.mkdir(parents=True, exist_ok=True)
    identity = create_server_identity()
    files = {"default.crt": identity.certificate, "default.key": identity.key, _CERTIFICATE_FILE: _CERTIFICATE}
    for name, text in {**files, "traefik.yml": configuration}.items():
        (folder / name).write_text(text)
    with (folder / "traefik.log").open("wb") as log:
        process = subprocess.Popen(
            [wheels.traefik(), "--configFile=traefik.yml"], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_until(lambda: _answers(api_port), timeout_s=30, what="Traefik")
            yield process
        finally:
            process.kill()
            process.wait()


def _answers(api_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{api_port}/api/version", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False
