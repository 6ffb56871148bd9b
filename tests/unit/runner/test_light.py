"""The runner's JSON is that of the module `json`, which no process of a session imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ai.backend.runner import light

SOURCE = Path(light.__file__).parents[1]
HEAVY = {"collections", "contextlib", "enum", "functools", "json", "re", "signal", "socket", "threading", "typing"}
VALUES: list[Any] = [
    {"t": "console", "items": [["stdout", "a\n\u00e9\ud83d"]], "seq": 10**40},
    {"deep": [[[{}]], 1.5, -0.0, 1e300, True, False, None]},
    {1: "a number as a key", None: 2},
    (1, 2),
    "",
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("make", [light._c_json, light._ordinary_json])
def test_values_are_written_as_json_writes_them(make: Any, value: Any) -> None:
    dumps, loads = make()
    assert dumps(value) == json.dumps(value, separators=(",", ":"))
    assert dumps(value, ensure_ascii=False) == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert loads(b" " + dumps(value).encode() + b"\r\n") == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{} x", b"nope", b"[1,]", b'"\x01"', b"\xff", b"\xef\xbb\xbf{}", b"[" * 100_000]
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    for loads in (light._c_json()[1], light._ordinary_json()[1]):
        with pytest.raises((ValueError, RecursionError)):
            loads(body)


def test_what_json_has_no_form_for_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (b"bytes", {1}, circle):
        with pytest.raises((TypeError, ValueError, RecursionError)):
            light.dumps(value)


@pytest.mark.parametrize(
    ("package", "folder", "modules"),
    [
        ("_backendai_runner", "runner", ("supervisor", "runs", "console", "python_child", "completion_requests")),
        ("_backendai_relay", "node/relay", ("container",)),
        ("_backendai_relay", "node/relay", ("inner",)),
        ("_backendai_relay", "node/relay", ("reaper",)),
    ],
)
def test_a_session_starts_without_heavy_modules(package: str, folder: str, modules: tuple[str, ...]) -> None:
    lines = ["import sys"]
    for name, place in (("_backendai_runner", SOURCE / "runner"), (package, SOURCE / folder)):
        lines += [f"sys.modules[{name!r}] = made = type(sys)({name!r}); made.__path__ = [{str(place)!r}]"]
    lines += [f"__import__({package + '.' + module!r})" for module in modules]
    code = "\n".join([*lines, "print(*sys.modules)"])
    printed = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    assert not HEAVY & set(printed.stdout.split())
