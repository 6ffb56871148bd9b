"""The reference of the calls between manager and agent, written from their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.common.wire.methods import Method
from ai.backend.infra.rpc.methods import COMMANDS, REPORTS

_STREAMS = {"frames": "PtyStream", "bytes": "ByteStream"}
_INTRODUCTION = """# Calls between manager and agent

Written from `ai.backend.common.wire.link`; the types are in `ai.backend.common.wire.agent`. Change them there and run
`python -m tools.docs`. A message is one msgpack array and has at most 64 MiB. A call of an unknown name, or with a
request of another type, raises InvalidInput on the side that calls; a message that is too large raises LimitExceeded,
a missing answer DeadlineExceeded, a missing peer Unavailable.

* *Repetition*: `read` changes nothing; `repeatable` has the effect of one call if it comes twice; `once` acts each
  time.
* *Deadline*: seconds for the way there and back; `+ field` adds what that field of the request says.
* *Abandoned*: whether the handler is cancelled when its caller has gone. The others run to their end.
"""


def page() -> str:
    """Returns docs/reference/rpc.md."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_section("From the manager to an agent", COMMANDS),
            *_section("From an agent to its manager", REPORTS),
        ]
    )


def _section(title: str, methods: Mapping[str, Method]) -> list[str]:
    head = "| call | request | reply | repetition | deadline | abandoned |"
    lines = [f"## {title}", "", head, "|---|---|---|---|---|---|"]
    for method in methods.values():
        deadline = f"{method.deadline_s:g}" + (f" + `{method.wait_field}`" if method.wait_field is not None else "")
        cells = (
            f"[`{method.name}`](#{method.name})",
            f"`{_name(method.request)}`",
            _reply(method),
            method.repetition,
            deadline,
            "yes" if method.abandonable else "no",
        )
        lines.append(f"| {' | '.join(cells)} |")
    for method in methods.values():
        lines += ["", f"### {method.name}", "", *_paragraphs(method.documentation)]
    return [*lines, ""]


def _reply(method: Method) -> str:
    if method.stream is not None:
        return f"a `{_STREAMS[method.stream]}`"
    return "-" if method.reply is None else f"`{_name(method.reply)}`"


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else _generic(kind)


def _generic(kind: Any) -> str:
    return f"{kind.__origin__.__name__}[{', '.join(_name(one) for one in kind.__args__)}]"


def _paragraphs(documentation: str) -> list[str]:
    """Returns the text with its section ``Raises:`` as a list."""
    lines = documentation.replace("``", "`").split("\n")
    return [f"* {line.strip()}" if line.startswith("    ") else line for line in lines]
