"""The cases of `run`: one for every combination of range values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ai.backend.cli.run.ranges import MAX_CASES, RangeError, substitute

if TYPE_CHECKING:
    from ai.backend.client.func.creation import CreateOptions


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
    files: tuple[str, ...] = ()
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

    def batch_options(self, case: Case) -> dict[str, object]:
        """Returns the Batch Execution Query Object of a case; the image's own commands by default."""
        build = case.build
        if build is None:
            build = "*" if case.exec is None else ""
        return {
            "clean": "*" if self.clean is None else self.clean,
            "build": build,
            "buildLog": self.build_log,
            "exec": "*" if case.exec is None else case.exec,
        }


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
