"""The definition language of services (spec 03-05)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ai.backend.runner.service_builtins import builtin_definition
from ai.backend.runner.service_definitions import (
    BadDefinition,
    Definition,
    is_name,
    parse_file_mode,
    read_definition,
    render,
    render_shell,
)

VARIABLES: dict[str, Any] = {
    "ports": [8080, 8081],
    "runtime_path": "/usr/bin/python",
    "made": {"out": "x\n", "err": ""},
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("c.port = {ports[0]}", "c.port = 8080"),
        ("{ports[1]}{{literal}}", "8081{literal}"),
        ("{made[out]}|{made[err]}", "x\n|"),
        ("{ports}", "[8080, 8081]"),
        ("{ports[0]:>6}", "  8080"),
        ("plain $HOME", "plain $HOME"),
    ],
)
def test_templates(template: str, text: str) -> None:
    assert render(template, VARIABLES) == text


@pytest.mark.parametrize(
    "template",
    [
        "{nobody}",
        "{ports[7]}",
        "{ports.__class__}",
        "{made[other]}",
        "{",
        "}",
        "{}",
        "{ports[0]:{ports[1]}}",
        "{ports!x}",
    ],
)
def test_what_is_no_template(template: str) -> None:
    with pytest.raises(BadDefinition):
        render(template, VARIABLES)


def test_a_shell_keeps_its_own_variables() -> None:
    template = "exec srv --port {ports[0]} --name ${NAME:-x} --home ${{HOME}} $USER"
    assert render_shell(template, VARIABLES) == "exec srv --port 8080 --name ${NAME:-x} --home ${HOME} $USER"


def test_the_example_of_the_specification(tmp_path: Path) -> None:
    data = {
        "prestart": [
            {
                "action": "write_tempfile",
                "args": {"body": ["c.NotebookApp.port = {ports[0]}\n"]},
                "ref": "jupyter_cfg",
            }
        ],
        "command": ["{runtime_path}", "-m", "jupyterlab", "--no-browser", "--config", "{jupyter_cfg}"],
        "url_template": "http://{host}:{port}/",
    }
    (tmp_path / "jupyter.json").write_text(json.dumps(data))
    definition = read_definition("jupyter", str(tmp_path))
    assert definition is not None
    assert definition.url_template == "http://{host}:{port}/"
    assert definition.prestart == [("write_tempfile", {"body": ["c.NotebookApp.port = {ports[0]}\n"]}, "jupyter_cfg")]
    assert read_definition("other", str(tmp_path)) is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "object"),
        ({}, "command"),
        ({"command": []}, "command"),
        ({"command": [1]}, "command"),
        ({"command": ["a"], "prestart": {}}, "list"),
        ({"command": ["a"], "prestart": [{"action": "reboot", "args": {}}]}, "one of"),
        ({"command": ["a"], "prestart": [{"action": "mkdir", "args": {}}]}, "needs path"),
        ({"command": ["a"], "prestart": [{"action": "mkdir", "args": {"path": 1}}]}, "text"),
        ({"command": ["a"], "prestart": [{"action": "mkdir", "args": {"path": "x", "y": 1}}]}, "takes no y"),
        ({"command": ["a"], "prestart": [{"action": "write_file", "args": {"body": "x", "filename": "f"}}]}, "list"),
        ({"command": ["a"], "prestart": [{"action": "log", "args": {"body": "x"}, "ref": "a b"}]}, "variable"),
        ({"command": ["a"], "env": {"A=B": "x"}}, "environment"),
        ({"command": ["a"], "url_template": 1}, "text"),
        ({"command": ["a"], "allowed_envs": "X"}, "list"),
    ],
)
def test_what_is_no_definition(data: Any, problem: str) -> None:
    with pytest.raises(BadDefinition, match=problem):
        Definition(data)


def test_hostile_files(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "huge.json").write_text(" " * 300_000)
    (tmp_path / "folder.json").mkdir()
    for name in ("deep", "huge", "folder"):
        with pytest.raises(BadDefinition):
            read_definition(name, str(tmp_path))
    assert not is_name("../x")
    assert not is_name("")


def test_arguments_and_variables_of_users() -> None:
    definition = Definition(
        {
            "command": ["a"],
            "allowed_arguments": ["--dir", "--bare"],
            "default_arguments": {"--dir": "/tmp", "--quiet": None},
            "allowed_envs": ["MODE"],
        }
    )
    assert definition.arguments(None) == ["--dir", "/tmp", "--quiet"]
    assert definition.arguments({"--dir": ["a", "b"], "--bare": None}) == ["--dir", "a", "b", "--quiet", "--bare"]
    assert definition.environment({"MODE": "1"}) == {"MODE": "1"}
    with pytest.raises(BadDefinition, match="no argument"):
        definition.arguments({"--exec": "x"})
    with pytest.raises(BadDefinition, match="no variable"):
        definition.environment({"LD_PRELOAD": "x"})


def test_modes() -> None:
    assert (parse_file_mode("755"), parse_file_mode("0600")) == (0o755, 0o600)
    for wrong in ("9", "abc", 755, "77777"):
        with pytest.raises(BadDefinition):
            parse_file_mode(wrong)


def test_built_in_services(tmp_path: Path) -> None:
    http = builtin_definition("http", "python", None)
    assert http is not None
    assert http.command == ["{runtime_path}", "-m", "http.server", "{ports[0]}", "--bind", "{host}"]
    assert builtin_definition("http", "bash", None) is None
    with pytest.raises(BadDefinition, match="kit"):
        builtin_definition("sshd", "bash", None)
    (tmp_path / "launch.json").write_text(json.dumps(["{kit}/ld.so", "{kit}/python"]))
    sshd = builtin_definition("sshd", "bash", str(tmp_path))
    assert sshd is not None
    assert sshd.command == [
        f"{tmp_path}/ld.so",
        f"{tmp_path}/python",
        f"{tmp_path}/programs/run.py",
        "sshd",
        "--port",
        "{ports[0]}",
        "--host",
        "{host}",
    ]
