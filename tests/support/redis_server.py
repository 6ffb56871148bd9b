"""A Redis (or Valkey) of our own."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from tests.support.cluster import free_port, wait_until


class RedisServer:
    """Keeps nothing on a disk: a kill loses everything, as what is in it may be lost."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        with (self.folder / "redis.log").open("ab") as output:
            self._process = subprocess.Popen(["redis-server", *options], stdout=output, stderr=output)
        wait_until(self._answers, what="Redis")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "redis.log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
