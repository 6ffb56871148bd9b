"""The agent's side of the zygote: starts it on demand, restarts it after a crash, and requests shims from it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ai.backend.common.errors import Unavailable, WorkloadError
from ai.backend.plugin.crash_points import crash_point

_SOURCE_ROOT = Path(__file__).resolve().parents[4]
_MAIN = "ai.backend.runtime.process.supervisor.zygote"
REPORT_LIMIT = 65536


class Zygote:
    """Starts one process that forks shims. It ends with this object or this process; the shims do not."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    async def start(self) -> None:
        """Starts the zygote unless it lives."""
        async with self._lock:
            await asyncio.to_thread(self._ensure)

    async def spawn(self, directory: Path, timeout_s: float, network: int | None = None) -> dict[str, Any]:
        """Forks a shim for a prepared directory; returns its report (``ok`` and ``leader``, or ``error``).

        The caller closes ``network``, a network namespace that the workload joins.

        Raises:
            Unavailable: there is no zygote, twice in a row.
            WorkloadError: the shim died or did not report in time.
        """
        data, zygote = await self._request_shim(directory, timeout_s, network)
        if not data and await asyncio.to_thread(_is_dead, zygote):
            # The zygote died with the request unread; a shim that lives all the same holds the lock against a second.
            data, _ = await self._request_shim(directory, timeout_s, network)
        if not data:
            raise WorkloadError("the workload's shim died while it started")
        report: dict[str, Any] = json.loads(data)
        return report

    async def _request_shim(
        self, directory: Path, timeout_s: float, network: int | None
    ) -> tuple[bytes, subprocess.Popen[bytes]]:
        """Returns the new shim's report, empty if it died before, and the zygote that forked it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            async with self._lock:
                zygote = await asyncio.to_thread(self._send, directory, theirs, network)
            theirs.close()
            async with asyncio.timeout(timeout_s):
                data = b""
                while chunk := await asyncio.get_running_loop().sock_recv(ours, REPORT_LIMIT):
                    data += chunk
        except TimeoutError as error:
            raise WorkloadError("the workload's processes did not appear in time") from error
        finally:
            theirs.close()
            ours.close()
        return data, zygote

    async def close(self) -> None:
        """Ends the zygote. Safe at any time."""
        async with self._lock:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            if self._process.returncode is None:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _send(self, directory: Path, report: socket.socket, network: int | None) -> subprocess.Popen[bytes]:
        message = json.dumps({"directory": str(directory)}).encode()
        descriptors = [report.fileno()] if network is None else [report.fileno(), network]
        connection, zygote = self._ensure()
        try:
            socket.send_fds(connection, [message], descriptors)
        except OSError:
            self._close()
            connection, zygote = self._ensure()
            try:
                socket.send_fds(connection, [message], descriptors)
            except OSError as error:
                raise Unavailable("the zygote does not answer") from error
        crash_point("create.requested")
        return zygote

    def _ensure(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket, self._process
        self._close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"import sys; sys.path.append({str(_SOURCE_ROOT)!r}); from {_MAIN} import main; main()"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [os.path.realpath(sys.executable), "-I", "-S", "-c", code],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={name: value for name, value in os.environ.items() if name.startswith(("BACKENDAI_CRASH", "LC_"))},
            )
        theirs.close()
        self._socket = ours
        return ours, self._process


def _is_dead(process: subprocess.Popen[bytes]) -> bool:
    """Returns True also for a process that ends at once: its sockets close before it counts as dead."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    return process.poll() is not None
