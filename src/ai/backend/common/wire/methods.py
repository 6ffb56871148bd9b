"""Declares remote calls as methods of an interface.

Types, proxies, dispatch and the reference page are derived from the interface.

    class AgentCommands(Protocol):
        @remote("read", deadline_s=30.0)
        async def read_logs(self, req: ReadLogs) -> bytes: ...

Name, request type, reply type and documentation of a call are those of the method, which has one argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from ai.backend.common.structs import replace

Repetition = Literal["read", "repeatable", "once"]
"""``read`` changes nothing. ``repeatable``: the same request twice has the effect of one. ``once``: each call acts."""
StreamKind = Literal["frames", "bytes"]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
_METHOD_ATTRIBUTE = "__remote__"


class Method(msgspec.Struct, frozen=True):
    """Describes a remote call. ``reply`` is the type on the wire, None for a method that opens a stream.

    ``deadline_s`` includes both ways. An ``abandonable`` handler is cancelled once its caller has gone; others run to
    their end, so that a repeated call sees the effect of the first.
    """

    name: str
    request: Any
    reply: Any
    documentation: str
    repetition: Repetition
    deadline_s: float
    wait_field: str | None
    stream: StreamKind | None
    abandonable: bool

    def deadline_of(self, request: object) -> float:
        """Returns the seconds that a call may take: its deadline plus the wait that the request allows."""
        wait_s: float = getattr(request, self.wait_field) if self.wait_field is not None else 0.0
        return self.deadline_s + max(0.0, wait_s)


def remote(
    repetition: Repetition,
    *,
    deadline_s: float = 15.0,
    wait_field: str | None = None,
    stream: StreamKind | None = None,
    abandonable: bool = False,
) -> Callable[[FunctionT], FunctionT]:
    """Marks a method of an interface as a remote call.

    Args:
        repetition: the effect of a second identical request.
        wait_field: the field of the request with seconds that are added to the deadline.
        stream: opens a PtyStream (``frames``) or a ByteStream (``bytes``) instead of a reply.
        abandonable: cancels the handler when its caller has gone; a ``read`` always is.
    """

    def declare(function: FunctionT) -> FunctionT:
        make_method = partial(
            Method,
            repetition=repetition,
            deadline_s=deadline_s,
            wait_field=wait_field,
            stream=stream,
            abandonable=abandonable or repetition == "read",
        )
        setattr(function, _METHOD_ATTRIBUTE, make_method)
        return function

    return declare


def methods_of(interface: type) -> dict[str, Method]:
    """Returns the remote calls of an interface by name, in the order of their declaration.

    Raises TypeError for a method that is no remote call with one argument.
    """
    methods: dict[str, Method] = {}
    for name, function in vars(interface).items():
        if name.startswith("_"):
            continue
        make_method = getattr(function, _METHOD_ATTRIBUTE, None)
        type_hints = get_type_hints(function) if make_method is not None else {}
        reply = type_hints.pop("return", None)
        if make_method is None or len(type_hints) != 1:
            raise TypeError(f"{interface.__name__}.{name} is no remote call with one argument")
        method: Method = make_method(
            name=name,
            request=next(iter(type_hints.values())),
            reply=reply,
            documentation=inspect.getdoc(function) or "",
        )
        has_reply = method.stream is None and reply is not type(None)
        methods[name] = method if has_reply else replace(method, reply=None)
    return methods
