"""Answers every frame of the runner protocol in memory, for tests of agents. Runs :mod:`.fake_program`."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from ai.backend.plugin.testing.runtime.fake_program import Program, ProgramDied, ProgramError, World

HOME = "/home/work"
FEATURES = ("query", "batch", "input", "complete", "pty", "files")
Emit = Callable[[dict[str, Any]], None]


@dataclass(kw_only=True)
class FakeRunner:
    """Simulates a runner in memory.

    ``emit`` takes its messages (without ``seq``), ``log`` its output, ``end`` its exit code.
    """

    emit: Emit
    log: Callable[[str], None]
    end: Callable[[int], None]
    environ: Mapping[str, str]
    files: MutableMapping[str, bytes]
    _run: asyncio.Task[None] | None = None
    _run_id: str = ""
    _cancelled: str | None = None

    def __post_init__(self) -> None:
        self._input: asyncio.Queue[str] = asyncio.Queue()
        self._program = self._new_program()

    def start(self) -> None:
        ready = {"t": "ready", "protocol": 1, "runtime": "python", "version": "3.fake", "features": list(FEATURES)}
        self.emit(ready)

    def stop(self) -> None:
        """Ends the running code. No frame is emitted afterwards."""
        self.emit = lambda _: None
        if self._run is not None:
            self._run.cancel()

    def handle(self, frame: Mapping[str, Any]) -> None:
        """Handles one frame that the agent sent."""
        match frame["t"]:
            case "run":
                self._run = asyncio.get_running_loop().create_task(self._execute(dict(frame)))
            case "input":
                self._input.put_nowait(frame["text"])
            case "interrupt" | "cancel":
                self._cancelled = frame.get("reason")
                if self._run is not None and not self._run.done():
                    self._run.cancel()
            case "restart":
                if self._run is not None and not self._run.done():
                    self._cancelled = "restart"
                    self._run.cancel()
                self._program = self._new_program()
                self.start()
            case "shutdown":
                self.end(0)
            case "ping":
                self._reply(frame, {})
            case "complete":
                self._reply(frame, {"matches": [word for word in ("print", "input") if word.startswith(frame["code"])]})
            case "file-write" | "file-list" | "file-read":
                self._file(frame)
            case "pty-open" | "pty-input" | "pty-resize" | "pty-restart" | "pty-close":
                self._pty(frame)

    def _new_program(self) -> Program:
        return Program(World(write=self._write, ask=self._ask, environ=self.environ, files=self.files, home=HOME))

    def _write(self, stream: str, text: str) -> None:
        self.log(text)
        self.emit({"t": "console", "id": self._run_id, "items": [[stream, text]]})

    async def _ask(self, is_password: bool) -> str:
        self.emit({"t": "waiting-input", "id": self._run_id, "is_password": is_password})
        return await self._input.get()

    async def _execute(self, frame: dict[str, Any]) -> None:
        self._run_id = frame["id"]
        self._cancelled = None
        before = dict(self.files)
        self.emit({"t": "started", "id": self._run_id})
        code, reason = 0, None
        try:
            if frame["mode"] == "batch":
                code = await self._run_batch(frame.get("options") or {})
            else:
                await self._program.run(frame.get("code", ""))
        except ProgramError as e:
            self._write("stderr", f"Traceback (most recent call last):\n{e}\n")
            code = 1 if frame["mode"] == "batch" else 0
        except ProgramDied as e:
            code = e.code
            if frame["mode"] != "batch":
                reason = "interpreter-died"
                self._program = self._new_program()
        except asyncio.CancelledError:
            reason = self._cancel_reason()
        out = f"{HOME}/.output/"
        files = [
            {"name": path.removeprefix(out), "size": len(data)}
            for path, data in self.files.items()
            if path.startswith(out) and before.get(path) != data
        ]
        finished = {"t": "finished", "id": self._run_id, "exitCode": code, "reason": reason, "signal": None}
        self.emit({**finished, "files": files})

    def _cancel_reason(self) -> str | None:
        """Returns the reason of a cancelled run, which loses its interpreter; None for an interrupt, an exception of
        the program."""
        if self._cancelled is None:
            self._write("stderr", "KeyboardInterrupt\n")
            return None
        self._program = self._new_program()
        return f"cancelled:{self._cancelled}"

    async def _run_batch(self, options: Mapping[str, Any]) -> int:
        if options.get("clean") is not None:
            self.emit({"t": "clean-finished", "id": self._run_id, "exitCode": 0})
        if options.get("build"):
            code = await self._run_command(options["build"])
            self.emit({"t": "build-finished", "id": self._run_id, "exitCode": code})
            if code:
                return 127
        return await self._run_command(options["exec"]) if options.get("exec") else 0

    async def _run_command(self, command: str) -> int:
        """Runs ``echo words``, ``exit n``, ``sleep s``, ``*`` (main.py of the home), or a program of the toy
        language."""
        word, _, rest = command.partition(" ")
        match word:
            case "echo":
                self._write("stdout", rest + "\n")
                return 0
            case "exit" | "false":
                return int(rest) if rest else 1
            case "sleep":
                await asyncio.sleep(float(rest))
                return 0
            case "*":
                await self._new_program().run(self.files.get(f"{HOME}/main.py", b"").decode())
                return 0
            case _:
                await self._new_program().run(command)
                return 0

    def _reply(self, frame: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        self.emit({"t": "reply", "req": frame["req"], "ok": True, "data": dict(data)})

    def _refuse(self, frame: Mapping[str, Any], kind: str, message: str) -> None:
        self.emit({"t": "reply", "req": frame["req"], "ok": False, "error": {"type": kind, "message": message}})

    def _locate(self, path: str) -> str | None:
        """Returns the absolute path. Returns None if the path leaves the home directory."""
        parts: list[str] = []
        for part in (path if path.startswith("/") else f"{HOME}/{path}").split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in ("", "."):
                parts.append(part)
        located = "/" + "/".join(parts)
        return located if located == HOME or located.startswith(HOME + "/") else None

    def _file(self, frame: Mapping[str, Any]) -> None:
        paths = frame["paths"] if frame["t"] == "file-read" else [frame["path"]]
        located = [self._locate(path) for path in paths]
        places = [path for path in located if path is not None]
        if len(places) < len(located):
            self._refuse(frame, "denied", f"outside of the home: {paths[located.index(None)]}")
        elif frame["t"] == "file-write":
            data = base64.b64decode(frame["data"])
            old = self.files.get(places[0], b"") if frame.get("offset") else b""
            self.files[places[0]] = old[: frame.get("offset", 0)] + data
            self._reply(frame, {"size": len(self.files[places[0]])})
        elif frame["t"] == "file-list":
            self._list(frame, places[0])
        else:
            self._read(frame, places)

    def _list(self, frame: Mapping[str, Any], folder: str) -> None:
        names = {
            path.removeprefix(folder + "/"): data for path, data in self.files.items() if path.startswith(folder + "/")
        }
        entries = [
            {"filename": name, "size": len(data), "mode": "-rw-r--r--", "mtime": 0.0, "kind": "file"}
            for name, data in sorted(names.items())
            if "/" not in name
        ]
        entries += [
            {"filename": name, "size": 0, "mode": "drwxr-xr-x", "mtime": 0.0, "kind": "directory"}
            for name in sorted({name.partition("/")[0] for name in names if "/" in name})
        ]
        self._reply(frame, {"entries": entries, "folder_path": folder})

    def _read(self, frame: Mapping[str, Any], paths: list[str]) -> None:
        for index, path in enumerate(paths):
            data = self.files.get(path)
            if data is None:
                self._refuse(frame, "not-found", path)
                return
            if len(data) > frame.get("max_bytes", len(data)):
                self._refuse(frame, "too-large", path)
                return
            name = path.rpartition("/")[2]
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as tar:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
            text = base64.b64encode(buffer.getvalue()).decode()
            self.emit({"t": "chunk", "req": frame["req"], "index": index, "name": name, "data": text, "eof": True})
        self._reply(frame, {})

    def _pty(self, frame: Mapping[str, Any]) -> None:
        """Simulates a terminal that echoes its input. The input ``exit`` closes the terminal."""
        match frame["t"]:
            case "pty-open":
                self._reply(frame, {})
                self._pty_output(frame["pty"], b"$ ")
            case "pty-input":
                data = base64.b64decode(frame["data"])
                self._pty_output(frame["pty"], data)
                if data.strip() == b"exit":
                    self.emit({"t": "pty-closed", "pty": frame["pty"], "exitCode": 0})
            case "pty-restart":
                self._pty_output(frame["pty"], b"$ ")
            case "pty-close":
                self.emit({"t": "pty-closed", "pty": frame["pty"], "exitCode": 0})

    def _pty_output(self, pty: str, data: bytes) -> None:
        self.emit({"t": "pty-output", "pty": pty, "data": base64.b64encode(data).decode()})
