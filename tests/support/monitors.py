"""What monitors report to, and their entry points."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path


def monitor_entry_points(folder: Path, errors: Mapping[str, str] | None = None) -> Path:
    """Returns a folder with the entry points of the shipped monitors and of other monitors of errors, for the path."""
    metadata = folder / "site/monitors-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: monitors\nVersion: 1.0\n")
    others = "".join(f"{name} = {place}\n" for name, place in (errors or {}).items())
    (metadata / "entry_points.txt").write_text(
        "[backendai_error_monitor_v20]\nsentry = ai.backend.monitor.sentry:SentryMonitor\n"
        f"{others}[backendai_stats_monitor_v20]\ndatadog = ai.backend.monitor.datadog:DatadogMonitor\n"
    )
    return metadata.parent


class DatadogAgent:
    """Takes datagrams of DogStatsD."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(30)
        self.port = self._socket.getsockname()[1]

    def lines(self, until: Callable[[list[str]], bool]) -> list[str]:
        lines: list[str] = []
        while not until(lines):
            lines += self._socket.recv(65_535).decode().splitlines()
        return lines

    def close(self) -> None:
        self._socket.close()
