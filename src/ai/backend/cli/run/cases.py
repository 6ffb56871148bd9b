"""The cases of `run`: one for every combination of range values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ai.backend.cli.run.ranges import MAX_CASES, RangeError, substitute

if TYPE_CHECKING:
    from pathlib import Path

    from ai.backend.client.func.creation import CreateOptions

_INTERPRETERS = {
    ".py": "python", ".sh": "bash", ".js": "node", ".r": "Rscript", ".jl": "julia", ".lua": "lua", ".pl": "perl",
    ".php": "php", ".rb": "ruby", ".go": "go run", ".java": "java",
}  # fmt: skip
"""Suffix of a program -> the command that runs it; others are built and run as the image says."""


@dataclass(frozen=True, slots=True)
class Case:
    """A combination of range values, and the texts with these values in them."""

    values: Mapping[str, str]
    env: Mapping[str, str]
    build: str | None
    exec: str | None

    @property
    def title(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options and the cases of one `backend.ai run`."""

    image: str
    code: str | None
    files: tuple[Path, ...] = ()
    basedir: Path | None = None
    clean: str | None = None
    build_log: bool = True
    remove: bool = False
    enqueue_only: bool = False
    max_wait: int = 0
    stats: bool = False
    max_parallel: int = 32
    quiet: bool = False
    name: str | None = None
    creation: CreateOptions
    cases: Sequence[Case]

    @property
    def file_names(self) -> list[str]:
        """Paths of the files in the session."""
        return [os.path.relpath(file, self.basedir or ".") for file in self.files]

    def batch_options(self, case: Case) -> dict[str, object]:
        """Returns the Batch Execution Query Object of a case; without commands its program, or what the image says."""
        command = program_command(self.file_names) if case.exec is None and not case.build else case.exec
        build = case.build
        if build is None:
            build = "*" if command is None else ""
        return {
            "clean": "*" if self.clean is None else self.clean,
            "build": build,
            "buildLog": self.build_log,
            "exec": "*" if command is None else command,
        }


def program_command(names: Sequence[str]) -> str | None:
    """Returns the command that runs the first of these files (spec 03-11:397).

    Returns None where the image says what runs: one of them is called ``main``, or the first is in no language that an
    interpreter runs.
    """
    from pathlib import Path

    paths = [Path(name) for name in names]
    if not paths or any(path.stem == "main" for path in paths):
        return None
    import shlex

    interpreter = _INTERPRETERS.get(paths[0].suffix.lower())
    return f"{interpreter} {shlex.quote(names[0])}" if interpreter else None


def missing_file_problem(image: str, files: Sequence[Path]) -> str | None:
    """Returns what is wrong with FILES of which one does not exist, or None if all exist.

    Where a file stands before it, the missing one is probably an argument of a program: the text has the command that
    passes it.
    """
    number = next((number for number, file in enumerate(files) if not file.exists()), None)
    if number is None:
        return None
    problem = f"there is no file {os.fspath(files[number])!r}"
    if number == 0:
        return problem
    arguments = [os.fspath(file) for file in files[number:]]
    command = command_with_arguments(image, files[:number], arguments)
    return f"{problem}; FILES are only uploaded, and a program gets its arguments by --exec: `{command}`"


def unknown_option_hint(option: str, arguments: Sequence[str]) -> str | None:
    """Returns the command that passes an option to a program, if a program stands before it among the arguments of
    `run`; else None."""
    from pathlib import Path

    words = list(arguments)
    number = next((number for number, word in enumerate(words) if number and Path(word).is_file()), None)
    if number is None or not any(word.startswith(option) for word in words[number:]):
        return None
    command = command_with_arguments(words[number - 1], [Path(words[number])], words[number + 1 :], words[: number - 1])
    return f"a program gets its options by --exec: `{command}`"


def command_with_arguments(
    image: str, files: Sequence[Path], arguments: Sequence[str], options: Sequence[str] = ()
) -> str:
    """Returns the `run` command that uploads the files and runs the first one with these arguments."""
    import shlex

    path = os.path.relpath(files[0])
    program = program_command([files[0].name if path.startswith(os.pardir) else path]) or "COMMAND"
    uploads = [os.fspath(file) for file in files]
    return shlex.join(["backend.ai", "run", *options, "--exec", f"{program} {shlex.join(arguments)}", image, *uploads])


def make_cases(
    env: Mapping[str, str],
    build: str | None,
    exec_: str | None,
    *,
    env_ranges: Sequence[Mapping[str, str]] = ({},),
    build_ranges: Sequence[Mapping[str, str]] = ({},),
    exec_ranges: Sequence[Mapping[str, str]] = ({},),
) -> list[Case]:
    """Returns every combination of the three kinds of ranges; in a text its own kind's variables come first.

    Raises RangeError if there are too many.
    """
    case_count = len(env_ranges) * len(build_ranges) * len(exec_ranges)
    if case_count > MAX_CASES:
        raise RangeError(f"{case_count} combinations are too many; {MAX_CASES} is the most")
    cases = []
    for of_env in env_ranges:
        for of_build in build_ranges:
            for of_exec in exec_ranges:
                all_values = {**of_env, **of_build, **of_exec}
                cases.append(
                    Case(
                        values=all_values,
                        env={name: substitute(text, {**all_values, **of_env}) for name, text in env.items()},
                        build=None if build is None else substitute(build, {**all_values, **of_build}),
                        exec=None if exec_ is None else substitute(exec_, all_values),
                    )
                )
    return cases
