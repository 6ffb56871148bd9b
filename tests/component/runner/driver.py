"""Drives one real runner over a socketpair, as the shim does."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ai.backend.runner

RUNNER = Path(ai.backend.runner.__file__).parent / "runner_main.py"
Message = dict[str, Any]


class Result:
    """What one run has said, from `started` to `finished`."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.finished = messages[-1]
        self.items: list[Any] = []
        for kind, value in (item for m in messages if m["t"] == "console" for item in m["items"]):
            # Where one message ends and the next begins is a matter of time; the client joins them again.
            if self.items and kind in ("stdout", "stderr") and self.items[-1][0] == kind:
                self.items[-1][1] += value
            else:
                self.items.append([kind, value])

    def text(self, stream: str) -> str:
        return "".join(value for kind, value in self.items if kind == stream)

    @property
    def out(self) -> str:
        return self.text("stdout")

    @property
    def err(self) -> str:
        return self.text("stderr")

    def of(self, kind: str) -> list[Message]:
        return [m for m in self.messages if m["t"] == kind]


class Driver:
    """The agent's end of a runner's channel."""

    def __init__(
        self,
        home: Path,
        runtime: str = "python",
        python: str = sys.executable,
        script: Path = RUNNER,
        user: int | None = None,
        process_limit: int | str = "unlimited",
        env: dict[str, str] | None = None,
        service_defs: Path | None = None,
    ) -> None:
        self.home = home
        self._count = 0
        self._in = b""
        ours, theirs = socket.socketpair()
        self.socket = ours
        defs = f"--service-defs {service_defs}" if service_defs else ""
        command = (
            f"ulimit -u {process_limit}; "
            f'exec "$0" -I -S "$1" --channel-fd 3 --runtime {runtime} --home "$2" {defs} 3<&{theirs.fileno()}'
        )
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", command, python, str(script), str(home)],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            user=user,
        )
        theirs.close()
        try:
            self.ready = self.expect("ready")
        except BaseException:
            self.close()
            raise

    def close(self) -> int:
        """Closes the channel: the runner ends by itself, and with it what it has started."""
        self.socket.close()
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()

    def send(self, kind: str, **fields: Any) -> None:
        body = json.dumps({"t": kind, **fields}).encode()
        self.socket.sendall(len(body).to_bytes(4, "big") + body)

    def receive(self, timeout: float = 20.0) -> Message:
        deadline = time.monotonic() + timeout
        while True:
            if len(self._in) >= 4:
                size = int.from_bytes(self._in[:4], "big")
                assert 1 <= size <= 8 * 1024 * 1024
                if len(self._in) >= 4 + size:
                    message: Message = json.loads(self._in[4 : 4 + size])
                    self._in = self._in[4 + size :]
                    return message
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError("the runner has closed the channel")
            self._in += data

    def expect(self, kind: str, timeout: float = 20.0, **fields: Any) -> Message:
        """The next message of this kind whose fields match; what comes before is dropped."""
        deadline = time.monotonic() + timeout
        while True:
            message = self.receive(deadline - time.monotonic())
            if message["t"] == kind and all(message.get(k) == v for k, v in fields.items()):
                return message

    def submit(self, code: str = "", mode: str = "query", **fields: Any) -> str:
        self._count += 1
        run_id = f"run-{self._count}"
        self.send("run", **{"id": run_id, "mode": mode, "code": code, **fields})
        return run_id

    def collect(
        self, run_id: str, on_message: Callable[[Message], None] = lambda _: None, timeout: float = 30.0
    ) -> Result:
        """All messages of a run until it is finished."""
        messages = []
        deadline = time.monotonic() + timeout
        while True:
            message = self.receive(deadline - time.monotonic())
            if message.get("id") != run_id:
                continue
            messages.append(message)
            if message["t"] == "finished":
                return Result(messages)
            on_message(message)

    def run(self, code: str, **fields: Any) -> Result:
        return self.collect(self.submit(code, **fields))

    def batch(self, **options: Any) -> Result:
        env = options.pop("env", {})
        return self.collect(self.submit(mode="batch", options=options, env=env))

    def until_output(self, run_id: str, text: str) -> None:
        """Waits until the run has printed `text`."""
        seen = ""
        while text not in seen:
            message = self.expect("console", id=run_id)
            seen += "".join(value for kind, value in message["items"] if kind in ("stdout", "stderr"))

    def request(self, kind: str, **fields: Any) -> Message:
        self._count += 1
        self.send(kind, req=self._count, **fields)
        return self.expect("reply", req=self._count)

    def data(self, kind: str, **fields: Any) -> Any:
        reply = self.request(kind, **fields)
        assert reply["ok"], reply
        return reply["data"]

    def error(self, kind: str, **fields: Any) -> str:
        reply = self.request(kind, **fields)
        assert not reply["ok"], reply
        assert reply["error"]["message"]
        return str(reply["error"]["type"])

    def upload(self, path: str, data: bytes) -> None:
        self.data("file-write", path=path, data=base64.b64encode(data).decode(), offset=0, last=True)

    def download(self, *paths: str, max_bytes: int = 1 << 24) -> list[tarfile.TarFile]:
        self._count += 1
        request = self._count
        self.send("file-read", req=request, paths=paths, max_bytes=max_bytes)
        archives = [b"" for _ in paths]
        while True:
            message = self.receive()
            if message["t"] == "reply":
                assert message["req"] == request
                assert message["ok"], message
                return [tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") for data in archives]
            assert message["t"] == "chunk"
            archives[message["index"]] += base64.b64decode(message["data"])
