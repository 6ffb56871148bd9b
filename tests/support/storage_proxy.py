"""A storage proxy for tests: its settings, a caller of its two APIs, and it as a process that can be killed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp

from ai.backend.storage.config.settings import StorageSettings
from tests.support.cluster import free_port, wait_until
from tests.support.forked import ForkedPopen

MANAGER_SECRET = "a-secret-between-manager-and-proxy"
TOKEN_SECRET = "a-secret-that-signs-all-the-tokens"
SECRET_HEADER = "X-BackendAI-Storage-Auth-Token"
TUS = {"Tus-Resumable": "1.0.0"}
CHUNK = {**TUS, "Content-Type": "application/offset+octet-stream"}


def settings(
    root: Path, *, client_port: int = 0, manager_port: int = 0, tables: Mapping[str, Any] | None = None, **own: Any
) -> dict[str, Any]:
    """The content of a storage-proxy.toml; ``tables`` are further ones."""
    return {
        "storage-proxy": {
            "node-id": "test",
            "secret": TOKEN_SECRET,
            **{k.replace("_", "-"): v for k, v in own.items()},
        },
        "api": {
            "client": {"service-addr": {"host": "127.0.0.1", "port": client_port}},
            "manager": {"service-addr": {"host": "127.0.0.1", "port": manager_port}, "secret": MANAGER_SECRET},
        },
        "volume": {"volume1": {"backend": "vfs", "path": str(root / "volume1")}},
        **(tables or {}),
    }


def parsed(root: Path, **own: Any) -> StorageSettings:
    return StorageSettings.model_validate(settings(root, **own))


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """Asks as a manager does, and as whoever got a token."""

    def __init__(self, http: aiohttp.ClientSession, manager_url: str, volume: str = "volume1") -> None:
        self.http = http
        self.manager_url = manager_url
        self.volume = volume

    async def ask(self, method: str, path: str, *, secret: str = MANAGER_SECRET, **body: Any) -> Answer:
        body = {"volume": self.volume, **body} if "src_volume" not in body and "task_id" not in body else body
        return await self.send(
            method, self.manager_url + path, headers={SECRET_HEADER: secret}, json=body if path != "/volumes" else None
        )

    async def send(self, method: str, url: str, **options: Any) -> Answer:
        async with self.http.request(method, url, **options) as response:
            return Answer(response.status, response.headers, await response.read())

    async def folder(self) -> str:
        """A new folder."""
        vfid = f"user:{uuid4()}/{uuid4().hex}"
        answer = await self.ask("POST", "/folder/create", vfid=vfid)
        assert answer.status == 204, answer.body
        return vfid

    async def upload_url(self, vfid: str, relpath: str, size: int) -> str:
        answer = await self.ask("POST", "/folder/file/upload", vfid=vfid, relpath=relpath, size=size)
        assert answer.status == 200, answer.body
        return f"{answer.json['url']}?token={answer.json['token']}"

    async def download_url(self, vfid: str, relpath: str, *, archive: bool = False) -> str:
        answer = await self.ask("POST", "/folder/file/download", vfid=vfid, relpath=relpath, archive=archive)
        assert answer.status == 200, answer.body
        return f"{answer.json['url']}?token={answer.json['token']}"

    async def patch(self, url: str, offset: int, data: Any, **headers: str) -> Answer:
        data = io.BytesIO(data) if isinstance(data, bytes) else data
        return await self.send("PATCH", url, data=data, headers={**CHUNK, "Upload-Offset": str(offset), **headers})

    async def head(self, url: str) -> Answer:
        return await self.send("HEAD", url, headers=TUS)

    async def put(self, vfid: str, relpath: str, data: bytes) -> None:
        url = await self.upload_url(vfid, relpath, len(data))
        if data:
            answer = await self.patch(url, 0, data)
            assert answer.status == 204, answer.body

    async def inside(self, vfid: str) -> Path:
        """The folder as a session sees it."""
        return Path((await self.ask("GET", "/folder/mount", vfid=vfid)).json["path"])


class ProxyProcess:
    """``backend.ai storage start-server`` in a process of its own, on the same directory each time."""

    def __init__(
        self, root: Path, tables: Mapping[str, Any] | None = None, launcher: Sequence[str] = (), **own: Any
    ) -> None:
        self.launcher = launcher
        self.root = root
        self.client_port, self.manager_port = free_port(), free_port()
        self.manager_url = f"http://127.0.0.1:{self.manager_port}"
        self.file = root / "storage-proxy.toml"
        ports = {"client_port": self.client_port, "manager_port": self.manager_port}
        content = settings(root, tables=tables, **ports, **own)
        self.file.write_text(_toml(content))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, crash_point: str = "") -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("BACKEND")}
        with (self.root / "proxy.out").open("ab") as output:
            popen = subprocess.Popen if self.launcher else ForkedPopen
            self.process = popen(
                [
                    *self.launcher,
                    sys.executable,
                    "-m",
                    "ai.backend.cli.main",
                    "storage",
                    "start-server",
                    "-f",
                    str(self.file),
                ],
                env={**env, "BACKENDAI_CRASH_POINT": crash_point},
                stdout=output,
                stderr=output,
            )
        wait_until(lambda: self._serves() or self._ended(), what="the storage proxy serving")

    def _serves(self) -> bool:
        import urllib.error
        import urllib.request

        try:
            with urllib.request.urlopen(f"{self.manager_url}/readyz", timeout=5) as reply:
                return bool(reply.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _ended(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError((self.root / "proxy.out").read_text())
        return False

    def workers(self) -> list[int]:
        """Its further processes, with ``num-proc`` above one."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(text) for text in children.read_text().split()]

    def wait_killed(self) -> bool:
        assert self.process is not None
        return self.process.wait(20) == -9

    def stop(self, *, kill: bool = False) -> None:
        if self.process is not None and self.process.poll() is None:
            (self.process.kill if kill else self.process.terminate)()
        if self.process is not None:
            self.process.wait(20)


def _toml(data: Mapping[str, Any], table: str = "") -> str:
    lines = [f"[{table}]"] if table else []
    lines += [f"{key} = {json.dumps(value)}" for key, value in data.items() if not isinstance(value, dict)]
    tables = [(key, value) for key, value in data.items() if isinstance(value, dict)]
    return "\n".join(lines) + "\n" + "".join(_toml(v, f"{table}.{k}" if table else k) for k, v in tables)
