"""An etcd of our own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.cluster import free_port, wait_until


class EtcdServer:
    """One member in ``folder``; ``kill`` and ``start`` it as often as you like."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._peer_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = ["etcd", "--name", "one", "--data-dir", str(self.folder / "data"), "--unsafe-no-fsync"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"]
        with (self.folder / "log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_until(self._answers, what="etcd")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            with urlopen(f"{self.url}/health", timeout=5) as response:
                return b"true" in response.read()
        except (URLError, OSError):
            return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
