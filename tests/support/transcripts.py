"""Executable examples in the documentation.

A block fenced as ```console holds commands and what they print:

    $ backend.ai ps
    ... hello ...

A line that begins with `$ ` is a command for the shell; `> ` continues it. What follows is expected on its output, in
order and in full; `...` stands for any text within a line, and for any number of lines where it is alone.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Example:
    """One command of a page with the output that the page promises."""

    line_number: int
    command: str
    expected: str


def examples(page: str) -> Iterator[Example]:
    """Yield the commands of every ```console block of a page, in order."""
    inside = False
    command: list[str] = []
    expected: list[str] = []
    started = 0
    for number, line in enumerate(page.splitlines(), start=1):
        if line.startswith("```"):
            if command:
                yield Example(started, "\n".join(command), "\n".join(expected))
                command, expected = [], []
            inside = not inside and line == "```console"
        elif inside and line.startswith("$ "):
            if command:
                yield Example(started, "\n".join(command), "\n".join(expected))
            command, expected, started = [line[2:]], [], number
        elif inside and (line.startswith("> ") or line == ">") and command and not expected:
            command.append(line[2:])
        elif inside and command:
            expected.append(line)


def matches(expected: str, printed: str) -> bool:
    """Say whether what was printed is what the page promises."""
    pattern = ""
    for line in expected.strip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part.rstrip()) for part in line.split("...")) + r"[ \t]*\n"
    text = "".join(line.rstrip() + "\n" for line in printed.strip().splitlines())
    return re.fullmatch(pattern, text) is not None


def run(example: Example, *, cwd: Path, env: Mapping[str, str], timeout_s: float = 60) -> str:
    """Run one command of a page and return what it printed on both streams.

    Raises:
        subprocess.CalledProcessError: the command did not end with 0.
        subprocess.TimeoutExpired: it did not end in time.
    """
    done = subprocess.run(
        ["bash", "-c", f"set -eo pipefail\n{example.command}"],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, example.command, done.stdout)
    return done.stdout
