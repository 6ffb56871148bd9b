"""Answers every frame of the runner protocol in memory, for tests of agents. Runs :mod:`.fake_program`."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from ai.backend.plugin.testing.runtime.fake_program import Program, ProgramContext, ProgramDied, ProgramError

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
        ready_frame = {
            "t": "ready",
            "protocol": 1,
            "runtime": "python",
            "version": "3.fake",
            "features": list(FEATURES),
        }
        self.emit(ready_frame)

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
                self._reply(
                    frame,
                    {
                        "matches": [
                            builtin_name
                            for builtin_name in ("print", "input")
                            if builtin_name.startswith(frame["code"])
                        ]
                    },
                )
            case "file-write" | "file-list" | "file-read":
                self._handle_file(frame)
            case "pty-open" | "pty-input" | "pty-resize" | "pty-restart" | "pty-close":
                self._handle_terminal(frame)

    def _new_program(self) -> Program:
        return Program(
            ProgramContext(write=self._write, ask=self._ask_client, environ=self.environ, files=self.files, home=HOME)
        )

    def _write(self, stream: str, text: str) -> None:
        self.log(text)
        self.emit({"t": "console", "id": self._run_id, "items": [[stream, text]]})

    async def _ask_client(self, is_password: bool) -> str:
        self.emit({"t": "waiting-input", "id": self._run_id, "is_password": is_password})
        return await self._input.get()

    async def _execute(self, frame: dict[str, Any]) -> None:
        self._run_id = frame["id"]
        self._cancelled = None
        files_before = dict(self.files)
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
        output_folder = f"{HOME}/.output/"
        changed_files = [
            {"name": path.removeprefix(output_folder), "size": len(content)}
            for path, content in self.files.items()
            if path.startswith(output_folder) and files_before.get(path) != content
        ]
        finished_frame = {"t": "finished", "id": self._run_id, "exitCode": code, "reason": reason, "signal": None}
        self.emit({**finished_frame, "files": changed_files})

    def _cancel_reason(self) -> str | None:
        """Returns the reason of a cancelled run, or None if the run was only interrupted.

        A cancelled run loses its interpreter; an interrupt is an exception of the program.
        """
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
        """Simulates a shell command, and returns its exit code: ``echo``, ``exit``, ``sleep``, ``*``, or a toy program.

        ``*`` is main.py of the home; any other command is a program of the toy language.
        """
        command_name, _, command_argument = command.partition(" ")
        match command_name:
            case "echo":
                self._write("stdout", command_argument + "\n")
                return 0
            case "exit" | "false":
                return int(command_argument) if command_argument else 1
            case "sleep":
                await asyncio.sleep(float(command_argument))
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
        """Returns the absolute path for a path in the home directory; None if the path leaves the home directory."""
        path_parts: list[str] = []
        for path_part in (path if path.startswith("/") else f"{HOME}/{path}").split("/"):
            if path_part == "..":
                path_parts = path_parts[:-1]
            elif path_part not in ("", "."):
                path_parts.append(path_part)
        absolute_path = "/" + "/".join(path_parts)
        return absolute_path if absolute_path == HOME or absolute_path.startswith(HOME + "/") else None

    def _handle_file(self, frame: Mapping[str, Any]) -> None:
        paths = frame["paths"] if frame["t"] == "file-read" else [frame["path"]]
        located_paths = [self._locate(path) for path in paths]
        allowed_paths = [path for path in located_paths if path is not None]
        if len(allowed_paths) < len(located_paths):
            self._refuse(frame, "denied", f"outside of the home: {paths[located_paths.index(None)]}")
        elif frame["t"] == "file-write":
            new_content = base64.b64decode(frame["data"])
            old_content = self.files.get(allowed_paths[0], b"") if frame.get("offset") else b""
            self.files[allowed_paths[0]] = old_content[: frame.get("offset", 0)] + new_content
            self._reply(frame, {"size": len(self.files[allowed_paths[0]])})
        elif frame["t"] == "file-list":
            self._list_folder(frame, allowed_paths[0])
        else:
            self._read_files(frame, allowed_paths)

    def _list_folder(self, frame: Mapping[str, Any], folder: str) -> None:
        names = {
            path.removeprefix(folder + "/"): content
            for path, content in self.files.items()
            if path.startswith(folder + "/")
        }
        entries = [
            {"filename": name, "size": len(content), "mode": "-rw-r--r--", "mtime": 0.0, "kind": "file"}
            for name, content in sorted(names.items())
            if "/" not in name
        ]
        entries += [
            {"filename": name, "size": 0, "mode": "drwxr-xr-x", "mtime": 0.0, "kind": "directory"}
            for name in sorted({name.partition("/")[0] for name in names if "/" in name})
        ]
        self._reply(frame, {"entries": entries, "folder_path": folder})

    def _read_files(self, frame: Mapping[str, Any], paths: list[str]) -> None:
        for index, path in enumerate(paths):
            content = self.files.get(path)
            if content is None:
                self._refuse(frame, "not-found", path)
                return
            if len(content) > frame.get("max_bytes", len(content)):
                self._refuse(frame, "too-large", path)
                return
            name = path.rpartition("/")[2]
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                archive_member = tarfile.TarInfo(name)
                archive_member.size = len(content)
                archive.addfile(archive_member, io.BytesIO(content))
            encoded_data = base64.b64encode(buffer.getvalue()).decode()
            self.emit(
                {"t": "chunk", "req": frame["req"], "index": index, "name": name, "data": encoded_data, "eof": True}
            )
        self._reply(frame, {})

    def _handle_terminal(self, frame: Mapping[str, Any]) -> None:
        """Simulates a terminal that echoes its input. The input ``exit`` closes the terminal."""
        match frame["t"]:
            case "pty-open":
                self._reply(frame, {})
                self._pty_output(frame["pty"], b"$ ")
            case "pty-input":
                input_bytes = base64.b64decode(frame["data"])
                self._pty_output(frame["pty"], input_bytes)
                if input_bytes.strip() == b"exit":
                    self.emit({"t": "pty-closed", "pty": frame["pty"], "exitCode": 0})
            case "pty-restart":
                self._pty_output(frame["pty"], b"$ ")
            case "pty-close":
                self.emit({"t": "pty-closed", "pty": frame["pty"], "exitCode": 0})

    def _pty_output(self, pty: str, data: bytes) -> None:
        self.emit({"t": "pty-output", "pty": pty, "data": base64.b64encode(data).decode()})
