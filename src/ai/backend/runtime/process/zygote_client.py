"""Controls the zygote from the agent: starts it on demand, restarts it after a crash, and requests shims from it."""

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
_ZYGOTE_MODULE = "ai.backend.runtime.process.supervisor.zygote"
MAX_REPORT_BYTES = 65536


class Zygote:
    """Controls the zygote, the process that forks shims. The shims outlive the zygote and the agent."""

    def __init__(self, log_path: Path) -> None:
        self._log = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    async def start(self) -> None:
        """Starts the zygote process unless it lives."""
        async with self._lock:
            await asyncio.to_thread(self._ensure_zygote)

    async def spawn(self, directory: Path, timeout_s: float, namespace_fd: int | None = None) -> dict[str, Any]:
        """Forks a shim for a prepared directory; returns its report (``ok`` and ``leader``, or ``error``).

        The caller closes ``namespace_fd``, a network namespace that the workload joins.

        Raises:
            Unavailable: there is no zygote, twice in a row.
            WorkloadError: the shim died or did not report in time.
        """
        report_json, zygote = await self._request_shim(directory, timeout_s, namespace_fd)
        if not report_json and await asyncio.to_thread(_is_dead, zygote):
            # The zygote died with the request unread; a shim that lives all the same holds the lock against a second.
            report_json, _ = await self._request_shim(directory, timeout_s, namespace_fd)
        if not report_json:
            raise WorkloadError("the workload's shim died while it started")
        report: dict[str, Any] = json.loads(report_json)
        return report

    async def _request_shim(
        self, directory: Path, timeout_s: float, namespace_fd: int | None
    ) -> tuple[bytes, subprocess.Popen[bytes]]:
        """Requests a shim from the zygote; returns the shim's report, and the zygote that forked the shim.

        The report is empty if the shim died before it could report.
        """
        report_socket, shim_socket = socket.socketpair()
        report_socket.setblocking(False)
        try:
            async with self._lock:
                zygote = self._send_now(directory, shim_socket, namespace_fd)
                if zygote is None:
                    zygote = await asyncio.to_thread(self._send_request, directory, shim_socket, namespace_fd)
            shim_socket.close()
            async with asyncio.timeout(timeout_s):
                report_json = b""
                while chunk := await asyncio.get_running_loop().sock_recv(report_socket, MAX_REPORT_BYTES):
                    report_json += chunk
        except TimeoutError as error:
            raise WorkloadError("the workload's processes did not appear in time") from error
        finally:
            shim_socket.close()
            report_socket.close()
        return report_json, zygote

    async def close(self) -> None:
        """Ends the zygote. Safe at any time."""
        async with self._lock:
            await asyncio.to_thread(self._end_process)

    def _end_process(self) -> None:
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

    def _send_now(
        self, directory: Path, report_socket: socket.socket, namespace_fd: int | None
    ) -> subprocess.Popen[bytes] | None:
        """Sends a request for a shim to the living zygote without waiting, and returns the zygote's process.

        Returns None if no zygote lives that takes the request at once.
        """
        if self.pid is None or self._socket is None:
            return None
        try:
            socket.send_fds(self._socket, *_packet(directory, report_socket, namespace_fd), socket.MSG_DONTWAIT)
        except OSError:
            return None
        crash_point("create.requested")
        return self._process

    def _send_request(
        self, directory: Path, report_socket: socket.socket, namespace_fd: int | None
    ) -> subprocess.Popen[bytes]:
        packet = _packet(directory, report_socket, namespace_fd)
        connection, zygote = self._ensure_zygote()
        try:
            socket.send_fds(connection, *packet)
        except OSError:
            self._end_process()
            connection, zygote = self._ensure_zygote()
            try:
                socket.send_fds(connection, *packet)
            except OSError as error:
                raise Unavailable("the zygote does not answer") from error
        crash_point("create.requested")
        return zygote

    def _ensure_zygote(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket, self._process
        self._end_process()
        agent_socket, zygote_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start_code = f"import sys; sys.path.append({str(_SOURCE_ROOT)!r}); from {_ZYGOTE_MODULE} import main; main()"
        with self._log.open("ab") as log_file:
            self._process = subprocess.Popen(
                [os.path.realpath(sys.executable), "-I", "-S", "-c", start_code],
                stdin=zygote_socket.fileno(),
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                cwd="/",
                env={
                    variable: value
                    for variable, value in os.environ.items()
                    if variable.startswith(("BACKENDAI_CRASH", "LC_"))
                },
            )
        zygote_socket.close()
        self._socket = agent_socket
        return agent_socket, self._process


def _packet(directory: Path, report_socket: socket.socket, namespace_fd: int | None) -> tuple[list[bytes], list[int]]:
    """Returns the message that requests a shim from the zygote, and the descriptors to send with it."""
    fds = [report_socket.fileno()] if namespace_fd is None else [report_socket.fileno(), namespace_fd]
    return [json.dumps({"directory": str(directory)}).encode()], fds


def _is_dead(process: subprocess.Popen[bytes]) -> bool:
    """Returns True if a process has ended, or ends within half a second.

    The sockets of a process close before its end.
    """
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    return process.poll() is not None
