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
    """Holds one combination of range values of `backend.ai run`, and the texts into which the values were put."""

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
        """Returns the Batch Execution Query Object of a case.

        Without commands, the object runs the program, or what the image says.
        """
        command = program_command(self.file_names) if case.exec is None and not case.build else case.exec
        build_command = case.build
        if build_command is None:
            build_command = "*" if command is None else ""
        return {
            "clean": "*" if self.clean is None else self.clean,
            "build": build_command,
            "buildLog": self.build_log,
            "exec": "*" if command is None else command,
        }


def program_command(file_names: Sequence[str]) -> str | None:
    """Returns the command that runs the first of the uploaded files, such as a Python program (spec 03-11:397).

    Returns None where the image says what runs: one of them is called ``main``, or the first is in no language that an
    interpreter runs.
    """
    from pathlib import Path

    paths = [Path(name) for name in file_names]
    if not paths or any(path.stem == "main" for path in paths):
        return None
    import shlex

    interpreter = _INTERPRETERS.get(paths[0].suffix.lower())
    return f"{interpreter} {shlex.quote(file_names[0])}" if interpreter else None


def missing_file_problem(image: str, files: Sequence[Path]) -> str | None:
    """Returns an error message if one of the FILES does not exist, or None if all exist.

    Where a file stands before it, the missing one is probably an argument of a program: the text has the command that
    passes it.
    """
    missing_index = next((missing_index for missing_index, file in enumerate(files) if not file.exists()), None)
    if missing_index is None:
        return None
    problem = f"there is no file {os.fspath(files[missing_index])!r}"
    if missing_index == 0:
        return problem
    arguments = [os.fspath(file) for file in files[missing_index:]]
    command = command_with_arguments(image, files[:missing_index], arguments)
    return f"{problem}; FILES are only uploaded, and a program gets its arguments by --exec: `{command}`"


def unknown_option_hint(option: str, arguments: Sequence[str]) -> str | None:
    """Returns a hint with the command that passes an unknown option of `run` to the program before it, or None.

    It is None if no file, which may be a program, stands before the option among the arguments.
    """
    from pathlib import Path

    arguments_list = list(arguments)
    program_index = next(
        (
            program_index
            for program_index, argument in enumerate(arguments_list)
            if program_index and Path(argument).is_file()
        ),
        None,
    )
    if program_index is None or not any(argument.startswith(option) for argument in arguments_list[program_index:]):
        return None
    command = command_with_arguments(
        arguments_list[program_index - 1],
        [Path(arguments_list[program_index])],
        arguments_list[program_index + 1 :],
        arguments_list[: program_index - 1],
    )
    return f"a program gets its options by --exec: `{command}`"


def command_with_arguments(
    image: str, files: Sequence[Path], arguments: Sequence[str], options: Sequence[str] = ()
) -> str:
    """Returns the `run` command that uploads the files and runs the first one with these arguments."""
    import shlex

    program_path = os.path.relpath(files[0])
    program_text = program_command([files[0].name if program_path.startswith(os.pardir) else program_path]) or "COMMAND"
    uploaded_paths = [os.fspath(file) for file in files]
    return shlex.join(
        ["backend.ai", "run", *options, "--exec", f"{program_text} {shlex.join(arguments)}", image, *uploaded_paths]
    )


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
    for env_values in env_ranges:
        for build_values in build_ranges:
            for exec_values in exec_ranges:
                all_values = {**env_values, **build_values, **exec_values}
                cases.append(
                    Case(
                        values=all_values,
                        env={name: substitute(text, {**all_values, **env_values}) for name, text in env.items()},
                        build=None if build is None else substitute(build, {**all_values, **build_values}),
                        exec=None if exec_ is None else substitute(exec_, all_values),
                    )
                )
    return cases
