"""A pytest plugin: a real server that speaks S3 (moto), started once by each pytest process that asks for it."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import free_port, wait_until

BUCKET = "artifacts"


def options(url: str, **own: Any) -> dict[str, Any]:
    """Settings of a storage on the server."""
    return {"endpoint": url, "bucket": BUCKET, "access-key": "key", "secret-key": "secret", "part-size": 5 << 20, **own}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log: Path = tmp_path_factory.mktemp("s3") / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output
        )
    try:
        wait_until(lambda: _answers(f"{url}/moto-api/data.json"), what="the S3 server answering")
        request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=20).close()
        yield url
    finally:
        server.kill()
        server.wait()
