"""Services of a real runner: started by their definitions, watched, and ended."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.component.runner.driver import Driver

SERVER = """
import os, socket, sys, time
print("says", *sys.argv[1:], os.environ.get("MODE"), flush=True)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    connection.sendall(b"hello")
    connection.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "defs"
    path.mkdir()
    (tmp_path / "server.py").write_text(SERVER)
    return path


@pytest.fixture
def runner(home: Path, folder: Path) -> Iterator[Driver]:
    driver = Driver(home, service_defs=folder)
    yield driver
    driver.close()


NOTEBOOK = """#!{python}
# Stands in for the interpreter of an environment with JupyterLab.
import json, os, pathlib, socket, sys, types
names = ("ServerApp", "IdentityProvider", "FileContentsManager")
c = types.SimpleNamespace(**{{name: types.SimpleNamespace() for name in names}})
exec(pathlib.Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
kernel = pathlib.Path(os.environ.get("JUPYTER_PATH", "/nowhere"), "kernels/python3/kernel.json")
spec = json.loads(kernel.read_text()) if kernel.exists() else None
told = [sys.argv[1:], vars(c.ServerApp), c.IdentityProvider.token, spec]
listener = socket.create_server((c.ServerApp.ip, c.ServerApp.port))
while True:
    connection, _ = listener.accept()
    connection.sendall(json.dumps(told).encode())
    connection.close()
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def start(runner: Driver, folder: Path) -> Callable[..., Any]:
    """Define a service and ask for it; the whole reply."""

    def start_one(name: str = "hello", definition: Any = None, **fields: Any) -> Any:
        if definition is not None:
            (folder / f"{name}.json").write_text(json.dumps(definition))
        ports = fields.pop("ports", None) or [free_port()]
        request = {"name": name, "protocol": "tcp", "ports": ports, "runtime_path": sys.executable, **fields}
        return runner.request("service-start", **request)

    return start_one


def listed(runner: Driver, name: str) -> Any:
    (state,) = runner.data("service-list", services=[{"name": name, "protocol": "tcp", "ports": [9]}])["services"]
    return state


def greeting(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return connection.recv(65_536)


def test_life_of_a_service(runner: Driver, start: Callable[..., Any], folder: Path) -> None:
    server = str(folder.parent / "server.py")
    definition = {
        "command": ["{runtime_path}", server, "{ports[0]}"],
        "env": {"MODE": "port-{ports[0]}"},
        "allowed_arguments": ["--extra"],
        "allowed_envs": ["MODE"],
        "url_template": "{protocol}://{host}:{port}/x",
    }
    reply = start(definition=definition, arguments={"--extra": ["1", "2"]})
    assert reply["ok"], reply
    state = reply["data"]
    assert (state["status"], state["url_template"]) == ("running", "{protocol}://{host}:{port}/x")
    (port,) = state["ports"]
    assert greeting(port) == b"hello"
    assert start()["data"]["ports"] == [port]  # it is found, not started again
    assert listed(runner, "hello")["status"] == "running"
    assert start("refused", definition, arguments={"--other": "1"})["error"]["type"] == "invalid"
    assert start("refused", definition, envs={"LD_PRELOAD": "1"})["error"]["type"] == "invalid"
    assert start("taken", definition, ports=[port])["error"]["type"] == "invalid"

    runner.data("service-stop", name="hello")
    assert listed(runner, "hello")["status"] == "stopped"
    with pytest.raises(ConnectionRefusedError):
        greeting(port)
    again = start(shared=True)["data"]["ports"]
    assert greeting(again[0]) == b"hello"


def test_the_prestart_actions(runner: Driver, start: Callable[..., Any], home: Path, folder: Path) -> None:
    server = str(folder.parent / "server.py")
    definition = {
        "prestart": [
            {"action": "mkdir", "args": {"path": "{home}/a/b"}},
            {"action": "write_file", "args": {"body": ["port={ports[0]}\n"], "filename": "a/b/f", "mode": "640"}},
            {"action": "write_file", "args": {"body": ["more"], "filename": "a/b/f", "mode": "640", "append": True}},
            {"action": "write_tempfile", "args": {"body": ["#!/bin/sh\necho from-$1\n"]}, "ref": "script"},
            {"action": "run_command", "args": {"command": ["{script}", "script"]}, "ref": "made"},
            {"action": "log", "args": {"body": "made {made[out]}"}},
            {"action": "write_file", "args": {"body": ["{made[out]}"], "filename": "made"}},
        ],
        # As the specification advises: the shell is replaced by what it starts.
        "command": f"cat a/b/f > copied; exec {{runtime_path}} {server} {{ports[0]}} ${{HOME}} ${{{{NOTHING:-none}}}}",
    }
    reply = start(definition=definition)
    assert reply["ok"], reply
    (port,) = reply["data"]["ports"]
    assert (home / "copied").read_text() == f"port={port}\nmore"
    assert (home / "a/b/f").stat().st_mode & 0o777 == 0o640
    assert (home / "made").read_text() == "from-script\n"
    assert (home / "made").stat().st_mode & 0o777 == 0o755


def test_what_cannot_start_says_why(runner: Driver, start: Callable[..., Any], folder: Path) -> None:
    def message(name: str, definition: Any, kind: str, **fields: Any) -> str:
        error = start(name, definition, **fields)["error"]
        assert error["type"] == kind, error
        return str(error["message"])

    assert "cannot execute" in message("missing", {"command": ["/no/such/program"]}, "failed")
    assert "'{nobody}' is no variable" in message("unknown", {"command": ["{nobody}"]}, "failed")
    crash = message("crash", {"command": ["sh", "-c", "echo so-long >&2; exit 3"]}, "failed")
    assert "exit code 3" in crash
    assert "so-long" in crash
    assert "does not listen" in message("deaf", {"command": ["sleep", "60"]}, "failed", timeout=0.3)
    assert "nothing says" in message("nobody", None, "not-found")
    (folder / "bad.json").write_text("{")
    assert "no JSON" in message("bad", None, "invalid")
    assert listed(runner, "crash")["status"] == "failed"
    assert runner.error("service-start", name="../etc", protocol="tcp", ports=[1]) == "invalid"
    assert runner.error("service-start", name="x", protocol="tcp", ports=[0]) == "invalid"
    assert runner.data("ping")["busy"] is False


def test_a_crash_is_noticed(runner: Driver, start: Callable[..., Any], folder: Path) -> None:
    code = (folder.parent / "server.py").read_text().replace("connection.close()", "os._exit(7)")
    (folder.parent / "fragile.py").write_text(code)
    definition = {"command": ["{runtime_path}", str(folder.parent / "fragile.py"), "{ports[0]}"]}
    (port,) = start(definition=definition)["data"]["ports"]
    greeting(port)
    ended = runner.expect("service-ended", name="hello")
    assert (ended["exitCode"], ended["signal"]) == (7, None)
    state = listed(runner, "hello")
    assert (state["status"], state["ports"], state["reason"]) == ("failed", [], "it ended with exit code 7")
    assert start()["ok"]


def test_one_that_goes_to_the_background(runner: Driver, start: Callable[..., Any], folder: Path) -> None:
    server = str(folder.parent / "server.py")
    (port,) = start(definition={"command": f"{{runtime_path}} {server} {{ports[0]}} &"})["data"]["ports"]
    assert greeting(port) == b"hello"
    assert listed(runner, "hello")["status"] == "running"
    runner.data("service-stop", name="hello")
    assert listed(runner, "hello")["status"] == "stopped"


def test_preopened_and_noop_services_are_looked_up(runner: Driver, start: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        state = start(str(port), protocol="preopen", ports=[port])["data"]
        assert (state["status"], state["ports"]) == ("running", [port])
    state = start("mine", {"noop": True, "url_template": "http://x"}, ports=[port], timeout=0.1)["data"]
    assert (state["status"], state["url_template"]) == ("stopped", "http://x")


def test_services_end_with_the_session_and_cannot_reach_the_channel(
    runner: Driver, start: Callable[..., Any], folder: Path, home: Path
) -> None:
    code = f"import os\nopen({str(home / 'fds')!r}, 'w').write(repr(sorted(os.listdir('/proc/self/fd'))))\n{SERVER}"
    (folder.parent / "nosy.py").write_text(code)
    definition = {"command": ["{runtime_path}", str(folder.parent / "nosy.py"), "{ports[0]}"]}
    (port,) = start(definition=definition)["data"]["ports"]
    assert json.loads((home / "fds").read_text().replace("'", '"'))[:3] == ["0", "1", "2"]
    assert len(json.loads((home / "fds").read_text().replace("'", '"'))) <= 5  # the file, and the folder
    assert runner.close() == 0
    with pytest.raises(ConnectionRefusedError):
        greeting(port)


def test_the_http_service_of_python_images(runner: Driver, start: Callable[..., Any], home: Path) -> None:
    (home / "page.txt").write_text("a page")
    (port,) = start("http", protocol="http")["data"]["ports"]
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/page.txt")
    assert connection.getresponse().read() == b"a page"
    connection.close()


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside", "in-the-session"])
def test_jupyterlab_is_configured_and_its_notebooks_run_in_the_session(
    start: Callable[..., Any], home: Path, tmp_path: Path, is_beside: bool
) -> None:
    interpreter = tmp_path / "a {brace}" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(NOTEBOOK.format(python=sys.executable))
    interpreter.chmod(0o755)
    paths = {"service_path": str(interpreter)} if is_beside else {"runtime_path": str(interpreter)}
    reply = start("jupyterlab", **paths)
    assert reply["ok"], reply
    assert reply["data"]["url_template"] == "http://{host}:{port}/lab"
    (port,) = reply["data"]["ports"]
    argv, server, token, kernel = json.loads(greeting(port))
    assert argv[:4] == ["-m", "jupyterlab", "--no-browser", "--config"]
    assert argv[4].endswith(".py"), "Jupyter reads no other"
    assert (server["port"], server["ip"], server["root_dir"], token) == (port, "127.0.0.1", str(home), "")
    if is_beside:
        assert kernel["argv"][0] == sys.executable
        packages = interpreter.parents[1] / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        assert f"sys.path.append({str(packages)!r})" in kernel["argv"][2]
        assert kernel["argv"][3:] == ["-f", "{connection_file}"]
    else:
        assert kernel is None
