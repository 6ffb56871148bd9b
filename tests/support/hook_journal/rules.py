"""What every journal must satisfy, wherever the agent was killed (the contract of AbstractLifecycleHook)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.support.hook_journal import read

Line = Mapping[str, Any]
_LETTERS = {"pre_create": "c", "post_create": "C", "pre_terminate": "t", "post_terminate": "T"}
_LIFE = re.compile(r"c+(C+t*)?T+")
_MAX_REPEATS = 4


def broken_rules(directory: Path, *, may_repeat: Sequence[str] = ()) -> list[str]:
    """Name every rule that the journal of finished kernels breaks.

    Args:
        directory: of the journal and the files that stand for partitions.
        may_repeat: methods that are meant to be called more often than a crash explains.
    """
    lines = read(directory)
    broken = [f"{path.name} was never undone" for path in directory.glob("made.*")]
    key = lambda line: (line["plugin"], line["kernel"], line["attempt"])  # noqa: E731  # of sorted and of groupby
    for (plugin, _, attempt), life in groupby(sorted(lines, key=key), key=key):
        where = f"{plugin}, attempt {attempt}"
        broken += [f"{where}: {text}" for text in _of_one_life(list(life), may_repeat)]
    return [*broken, *_between_lives(lines)]


def _of_one_life(life: Sequence[Line], may_repeat: Iterable[str]) -> list[str]:
    begins = [line for line in life if line["event"] == "begin"]
    sequence = "".join(_LETTERS[line["method"]] for line in begins)
    broken = []
    if not _LIFE.fullmatch(sequence):
        broken.append(f"the calls are {sequence}")
    for method, letter in _LETTERS.items():
        if sequence.count(letter) > _MAX_REPEATS and method not in may_repeat:
            broken.append(f"{method} was called {sequence.count(letter)} times")
    for line, possible in zip(life, _possible_states(life), strict=True):
        if line["event"] == "begin":
            if (line["state"], line["version"]) not in possible:
                broken.append(f"{line['method']} found {line['state']}, {line['version']} instead of one of {possible}")
            earlier = [b for b in begins[: begins.index(line)] if b["method"] == line["method"]]
            after_crash = any(b["agent"] != line["agent"] for b in earlier)
            if after_crash and line["cause"] != "recover":
                broken.append(f"{line['method']} was repeated by another agent as {line['cause']}")
            if line["cause"] == "recover" and len({b["agent"] for b in begins}) == 1 and earlier:
                broken.append(f"{line['method']} is a recovery without a crash")
            if (line["workload"] == "") != (line["method"] == "pre_create" or "C" not in sequence):
                broken.append(f"{line['method']} was told the workload {line['workload']!r}")
            if not line["held"]:
                broken.append(f"{line['method']} was told no devices")
    return broken


def _possible_states(life: Sequence[Line]) -> Iterator[list[tuple[Any, Any]]]:
    """Yields the managed states that each line may find.

    An acknowledged save is durable. A save without its acknowledgement, and what a call leaves at its end, are too if
    the agent lives on; if it was killed then, the state before is as good.
    """
    possible: list[tuple[Any, Any]] = [({}, 1)]
    previous: Line | None = None
    for line in life:
        state = (line["state"], line["version"])
        is_same_agent = previous is not None and previous["agent"] == line["agent"]
        if line["event"] == "begin" and is_same_agent and previous is not None and previous["event"] == "end":
            possible = possible[-1:]
        yield possible
        possible = [state] if line["event"] in ("begin", "saved") else [*possible, state]
        previous = line


def _between_lives(lines: Sequence[Line]) -> list[str]:
    """An older attempt is over when a newer one begins; plugins come in order, and go in reverse."""
    broken = []
    newest: dict[tuple[str, str], int] = {}
    for line in lines:
        key = (line["plugin"], line["kernel"])
        if line["attempt"] < newest.get(key, 0):
            broken.append(f"{line['method']} of attempt {line['attempt']} came after a newer attempt")
        newest[key] = max(newest.get(key, 0), line["attempt"])
    firsts: dict[tuple[str, int, str], list[str]] = {}
    for line in lines:
        order = firsts.setdefault((line["kernel"], line["attempt"], line["method"]), [])
        if line["plugin"] not in order:
            order.append(line["plugin"])
    for (_, attempt, method), order in firsts.items():
        wanted = ["first", "second"] if method in ("pre_create", "post_create") else ["second", "first"]
        if order not in (wanted, wanted[:1], wanted[1:]):
            broken.append(f"{method} of attempt {attempt} went {order}")
    return broken
