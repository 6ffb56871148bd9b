"""Planted faults: small changes of shipped code, each of which the simulation must find.

A fault is a text of a module and what stands in its place. It is applied to the modules that are imported already: the
changed source is compiled, and the code of each function that differs is exchanged until the block ends.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.simulation.story import fault_of

_ROOT = "ai.backend."
_MISSING_NAME = re.compile(r"\b(AttributeError|NameError|ImportError|UnboundLocalError)\b")


@dataclass(frozen=True, slots=True)
class Mutation:
    """``old`` occurs once in the module below ``ai.backend``. ``why_not``: why no seed finds it; empty if one does.
    The seeds that look for it begin at ``first_seed``.
    """

    name: str
    module: str
    old: str
    new: str
    why_not: str = ""
    first_seed: int = 0


class NoSuchText(Exception):
    """The shipped code has changed: the fault must be written anew."""


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """Have the fault in the code.

    Raises:
        NoSuchText: the old text does not occur exactly once, or is not within functions.
    """
    module = import_module(_ROOT + mutation.module)
    source = inspect.getsource(module)
    if source.count(mutation.old) != 1:
        raise NoSuchText(f"{mutation.name}: {mutation.old!r} occurs {source.count(mutation.old)} times")
    changed = _codes(compile(source.replace(mutation.old, mutation.new), module.__file__ or "", "exec"))
    exchanged = [
        (function, function.__code__, new)
        for function in _functions(module)
        if (new := changed.get(function.__code__.co_qualname)) is not None and _differs(function.__code__, new)
    ]
    if not exchanged:
        raise NoSuchText(f"{mutation.name}: it changes no function")
    for function, _, new in exchanged:
        function.__code__ = new
    try:
        yield
    finally:
        for function, before, _ in exchanged:
            function.__code__ = before


def _differs(one: CodeType, other: CodeType) -> bool:
    """Returns True if two functions differ in more than line numbers."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return True
    pairs = list(zip(one.co_consts, other.co_consts, strict=False))
    return len(one.co_consts) != len(other.co_consts) or any(
        _differs(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a != b for a, b in pairs
    )


def _codes(code: CodeType) -> dict[str, CodeType]:
    found = {}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found[const.co_qualname] = const
            found.update(_codes(const))
    return found


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those that are written in the module: its own, and those of its classes."""
    todo: list[Any] = list(vars(module).values())
    seen: set[int] = set()
    while todo:
        value = todo.pop()
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            todo += [part for part in (value.fget, value.fset) if part is not None]
        if id(value) in seen or getattr(value, "__module__", None) != module.__name__:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            yield value
            todo.append(getattr(value, "__wrapped__", None))
        elif isinstance(value, type):
            todo += list(vars(value).values())


def find(mutation: Mutation, *, seeds: int) -> tuple[Mutation, tuple[int, str] | None]:
    """Returns the fault, with the first of the seeds that finds it and what did not hold.

    Raises:
        NoSuchText: the new text names what no longer exists, so that it fails by itself.
    """
    with applied(mutation):
        for seed in range(mutation.first_seed, mutation.first_seed + seeds):
            _, fault = fault_of(seed)
            if fault is not None:
                if _MISSING_NAME.search(fault):
                    raise NoSuchText(f"{mutation.name}: {fault}")
                return mutation, (seed, fault)
    return mutation, None
