"""What the published client must be able to do with the services of a session: app, apps, ssh, scp."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import urllib.request
from collections.abc import Iterator

from tests.conformance.checks import Scene, ended, until
from tests.support.cluster import free_port

_PATIENCE_S = 30.0


@contextlib.contextmanager
def _local_port(scene: Scene, session: str, app: str) -> Iterator[int]:
    """The client's own proxy to a service, listening."""
    port = free_port()
    process = scene.client.popen("app", session, app, "-b", f"127.0.0.1:{port}")
    try:
        until(lambda: _is_listening(port) or process.poll() is not None, f"the client offers {app}")
        yield port
    finally:
        process.kill()
        process.communicate()


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, http.client.HTTPException) as error:
        raise AssertionError(f"{url} cannot be fetched: {error}") from error


def check_app(scene: Scene) -> None:
    """A file of the session's home, fetched over HTTP from a service that is started by the first connection."""
    with scene.session("conf-app") as session:
        session.upload_contents({"page.txt": b"served from inside" * 20_000})
        assert "http" in ended(scene.client("apps", "conf-app", "-l")).all
        with _local_port(scene, "conf-app", "http") as port:
            bodies = []
            for _ in range(2):
                bodies.append(_fetch(f"http://127.0.0.1:{port}/page.txt"))
        assert bodies == [b"served from inside" * 20_000] * 2


def check_ssh(scene: Scene) -> None:
    (scene.client.folder / ".ssh").mkdir(mode=0o700, exist_ok=True)
    with scene.session("conf-ssh"):
        command = "echo $((6 * 7)) > made; echo in $PWD as $(id -un)"
        said = ended(scene.client.interrupting("ssh", "-p", str(free_port()), "conf-ssh", command))
        assert "in /home/work as work" in said.all, said.all
        names = {file["filename"] for file in scene.server.ComputeSession("conf-ssh").list_files()}
        assert "made" in names
        until(lambda: not [*(scene.client.folder / ".ssh").glob("id_*")], "the client removed the key")


def check_scp(scene: Scene) -> None:
    folder = scene.client.folder
    (folder / ".ssh").mkdir(mode=0o700, exist_ok=True)
    content = os.urandom(3_000_000)
    (folder / "there.bin").write_bytes(content)
    with scene.session("conf-scp"):
        for source, target in (("there.bin", "work@localhost:kept.bin"), ("work@localhost:kept.bin", "back.bin")):
            said = ended(scene.client.interrupting("scp", "-p", str(free_port()), "conf-scp", source, target))
            assert "Failed" not in said.all, said.all
        (kept,) = [
            file for file in scene.server.ComputeSession("conf-scp").list_files() if file["filename"] == "kept.bin"
        ]
        assert int(kept["size"]) == len(content)
        assert (folder / "back.bin").read_bytes() == content
