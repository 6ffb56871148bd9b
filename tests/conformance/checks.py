"""What the published client must be able to do, one check a command.

A check is judged by what the client prints and by the server's state as our own SDK sees it, never by exit codes. Run
it with :func:`tests.conformance.catalogue.run_check`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.func.session import ComputeSession
from ai.backend.client.session import Session
from tests.conformance.published import Published, Said

RESOURCES: dict[str, str | int | float] = {"cpu": 1, "mem": "128m"}
_RESOURCE_OPTIONS = ("-r", "cpu=1", "-r", "mem=128m")


@dataclass(frozen=True)
class Scene:
    """The published client on one side, the server's state on the other: as its user sees it, and an administrator.

    ``image`` is that of sessions.
    """

    client: Published
    server: Session
    admin: Session | None = None
    image: str = "python"

    def living(self) -> dict[str, dict[str, Any]]:
        """Name to fields of every session that is alive."""
        statuses = ["PENDING", "SCHEDULED", "PREPARING", "PULLING", "PREPARED", "CREATING", "RUNNING", "TERMINATING"]
        page = self.server.ComputeSession.paginated_list(statuses, page_size=100)
        return {item["name"]: item for item in page.items}

    @contextlib.contextmanager
    def session(self, name: str) -> Iterator[ComputeSession]:
        """A running session that is gone afterwards."""
        made = self.server.ComputeSession.get_or_create(self.image, name=name, resources=RESOURCES)
        try:
            yield made
        finally:
            self.remove(name)

    def remove(self, name: str) -> None:
        with contextlib.suppress(BackendAPIError):
            self.server.ComputeSession(name).destroy(forced=True)
        until(lambda: name not in self.living(), f"{name} is gone")


def until(condition: Callable[[], Any], what: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s:g} s: {what}"
        time.sleep(0.1)


def ended(said: Said) -> Said:
    assert said.code is not None, f"the client hangs; it said: {said.all}"
    # Its own spinner breaks where a task has ended before it could turn.
    is_spinner = ", in spin\n" in said.all and said.all.rstrip().endswith("CancelledError")
    assert "Traceback (most recent call last)" not in said.all or is_spinner, said.all
    return said


def check_config(scene: Scene) -> None:
    said = ended(scene.client("config"))
    version = scene.server.System.get_versions()
    assert f"API: {version['version']})" in said.out, said.all
    assert version["manager"] in said.out, said.all
    assert scene.client.keys["BACKEND_ACCESS_KEY"] in said.out
    assert "warning" not in said.all.lower(), said.all


def check_ps(scene: Scene) -> None:
    with scene.session("conf-ps") as session:
        said = ended(scene.client("ps"))
        header, _, *rows = said.out.splitlines()
        assert len(rows) == 1, said.all
        starts = [header.index(title) for title in ("Name", "Session ID", "Image", "Type", "Status", "Last Updated")]
        cells = [rows[0][start:].split()[0] for start in starts]
        assert cells[:2] == ["conf-ps", str(session.id)], said.out
        assert cells[3:5] == ["interactive", "RUNNING"], said.out
        assert "python" in cells[2], said.out
        as_json = ended(scene.client("--output", "json", "ps"))
        listed = json.loads(as_json.out)
        assert [(one["name"], one["session_id"]) for one in listed["items"]] == [("conf-ps", str(session.id))]
    assert "conf-ps" in ended(scene.client("ps", "--dead")).out


def check_start(scene: Scene) -> None:
    try:
        said = ended(scene.client("start", "-t", "conf-start", *_RESOURCE_OPTIONS, scene.image))
        assert "is created and ready" in said.all, said.all
        found = scene.living()
        assert found["conf-start"]["status"] == "RUNNING"
        assert found["conf-start"]["id"] in said.all
        again = ended(scene.client("start", "-t", "conf-start", *_RESOURCE_OPTIONS, scene.image))
        assert "is already running and ready" in again.all, again.all
        detail = scene.server.ComputeSession("conf-start").detail(["occupying_slots"])
        assert detail is not None
        assert json.loads(detail["occupying_slots"])["mem"] == str(128 * 1024**2)
    finally:
        scene.remove("conf-start")


def check_run_code(scene: Scene) -> None:
    try:
        code = "import sys; print('hello', 6 * 7); print('oops', file=sys.stderr)"
        said = ended(scene.client("run", "--rm", "-t", "conf-run", *_RESOURCE_OPTIONS, "-c", code, scene.image))
        assert "hello 42" in said.all, said.all
        assert "oops" in said.all, said.all
        assert "finished" in said.all.lower(), said.all
        until(lambda: "conf-run" not in scene.living(), "--rm removed the session")
    finally:
        scene.remove("conf-run")


def check_run_long(scene: Scene) -> None:
    """Code that takes longer than a step of the run: its output must come in its order and once."""
    try:
        code = "import time\nfor n in range(4): print('tick', n); time.sleep(0.8)"
        said = ended(scene.client("run", "--rm", "-t", "conf-long", *_RESOURCE_OPTIONS, "-c", code, scene.image))
        ticks = [line for line in said.all.splitlines() if line.startswith("tick")]
        assert ticks == [f"tick {n}" for n in range(4)], said.all
    finally:
        scene.remove("conf-long")


def check_run_input(scene: Scene) -> None:
    """The program asks twice; what is typed reaches it, and it goes on."""
    try:
        code = "a = input('first? '); b = input('second? '); print('got', a, b)"
        command = ("run", "--rm", "-t", "conf-input", *_RESOURCE_OPTIONS, "-c", code, scene.image)
        said = ended(scene.client(*command, input_="one\ntwo\n"))
        assert "first?" in said.all, said.all
        assert "got one two" in said.all, said.all
    finally:
        scene.remove("conf-input")


def check_run_batch_input(scene: Scene) -> None:
    """A program in batch mode reads two lines from its standard input."""
    (scene.client.folder / "m.py").write_text("a = input('first? '); b = input('second? '); print('got', a, b)\n")
    try:
        command = ("run", "--rm", "-t", "conf-stdin", *_RESOURCE_OPTIONS, "--exec", "python3 m.py", scene.image, "m.py")
        said = ended(scene.client(*command, input_="one\ntwo\n"))
        assert "first?" in said.all, said.all
        assert "got one two" in said.all, said.all
    finally:
        scene.remove("conf-stdin")


def check_run_file(scene: Scene) -> None:
    (scene.client.folder / "hello.py").write_text("import sys\nprint('from a file', sys.argv[1:])\n")
    try:
        command = (
            "run",
            "-t",
            "conf-file",
            *_RESOURCE_OPTIONS,
            "--exec",
            "python3 hello.py arg1",
            scene.image,
            "hello.py",
        )
        said = ended(scene.client(*command))
        assert "from a file ['arg1']" in said.all, said.all
        files = scene.server.ComputeSession("conf-file").list_files()
        assert "hello.py" in {one["filename"] for one in files}
    finally:
        scene.remove("conf-file")


def check_info(scene: Scene) -> None:
    with scene.session("conf-info") as session:
        said = ended(scene.client("session", "info", str(session.id)))
        for fact in ("conf-info", str(session.id), "RUNNING", "128.0M", "python"):
            assert fact in said.out, (fact, said.all)


def check_logs(scene: Scene) -> None:
    with scene.session("conf-logs") as session:
        session.execute(code="print('into the log')")
        said = ended(scene.client("session", "logs", "conf-logs"))
        assert "into the log" in said.out, said.all
        assert "End of logs" in said.all, said.all


def check_upload(scene: Scene) -> None:
    folder = scene.client.folder
    (folder / "d é").mkdir(exist_ok=True)
    (folder / "up.bin").write_bytes(bytes(range(256)))
    (folder / "d é" / "deep 100%.txt").write_text("deep")
    with scene.session("conf-up") as session:
        ended(scene.client("session", "upload", "conf-up", "up.bin", "d é/deep 100%.txt"))
        written = session.download(["up.bin", "d é/deep 100%.txt"], dest=folder / "state")
        assert [path.read_bytes() for path in written] == [bytes(range(256)), b"deep"]


def check_download(scene: Scene) -> None:
    with scene.session("conf-down") as session:
        session.upload_contents({"down.bin": bytes(range(256)) * 9, "d/deep.txt": b"deep"})
        said = ended(scene.client("session", "download", "conf-down", "down.bin", "d/deep.txt"))
        found = {path.name: path.read_bytes() for path in scene.client.folder.rglob("*") if path.is_file()}
        assert found.get("down.bin") == bytes(range(256)) * 9, said.all
        assert found.get("deep.txt") == b"deep", said.all


def check_ls(scene: Scene) -> None:
    with scene.session("conf-ls") as session:
        session.upload_contents({"one.txt": b"1" * 1500, "sub/two.txt": b"2"})
        said = ended(scene.client("session", "ls", "conf-ls"))
        rows = {line.split()[0]: line.split() for line in said.out.splitlines() if ".txt" in line or "sub" in line}
        assert rows["one.txt"][-1].startswith("-rw"), said.all
        assert rows["sub"][-1].startswith("d"), said.all
        inner = ended(scene.client("session", "ls", "conf-ls", "sub"))
        assert "two.txt" in inner.out, inner.all
        assert "one.txt" not in inner.out, inner.all


def check_events(scene: Scene) -> None:
    with scene.session("conf-ev") as session:
        process = scene.client.popen("session", "events", str(session.id))
        try:
            time.sleep(3)  # the client is subscribed by then; it tells nobody when it is
            session.destroy()
            out, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"the stream has no end; it said: {out}{err}") from None
        ended(Said(out, err, process.returncode))
        assert "session_terminated" in out, out + err
        assert str(session.id) in out, out + err
        assert "user-requested" in out, out + err


def check_restart(scene: Scene) -> None:
    with scene.session("conf-re") as session:
        session.upload_contents({"kept.txt": b"kept"})
        session.execute(code="remembered = 1")
        ended(scene.client("session", "restart", "conf-re"))
        until(lambda: _is_running(session), "the session runs again")
        result = session.execute(code="print('remembered' in globals(), open('kept.txt').read())")
        assert result["console"][0][1].strip() == "False kept", result


def _is_running(session: ComputeSession) -> bool:
    return bool(session.get_info()["status"] == "RUNNING")


def check_rm(scene: Scene) -> None:
    with scene.session("conf-rm"):
        said = ended(scene.client("rm", "conf-rm"))
        assert "Done" in said.all, said.all
        until(lambda: "conf-rm" not in scene.living(), "rm removed the session")
        missing = ended(scene.client("rm", "conf-never-was"))
        assert "404" in missing.all, missing.all


def check_rename(scene: Scene) -> None:
    with scene.session("conf-old"):
        try:
            ended(scene.client("session", "rename", "conf-old", "conf-new"))
            assert "conf-new" in scene.living()
            assert "conf-old" not in scene.living()
        finally:
            scene.remove("conf-new")
