"""The commands of a page for operators, for a test that types them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = frozenset({"backend.ai", "systemctl", "curl", "df", "findmnt", "echo"})
_SPAN = re.compile(r"`([^`\n]+)`")
_NAME = re.compile(r"[\w./\[\]-]+")
"""Names of settings, files and labels, which nobody types."""


def spans(page: Path) -> Iterator[tuple[str, str]]:
    """Yields what stands as code on a page, after its kind: command, query or name.

    Raises:
        AssertionError: something is of no kind, so that nothing on the page goes untried.
    """
    for text in _SPAN.findall(page.read_text()):
        if text.partition(" ")[0] in PROGRAMS:
            yield "command", text
        elif "backendai_" in text:
            yield "query", text
        else:
            assert _NAME.fullmatch(text), f"{page.name}: {text!r} is neither a command nor a query nor a name"
            yield "name", text


def stand_in_for_systemd(folder: Path, units: Path) -> None:
    """Puts a `systemctl` into a folder of programs that fails for a unit that is not shipped."""
    program = folder / "systemctl"
    program.write_text(
        "#!/bin/sh\nset -e\n"
        'case "$1" in status|restart|reload|stop|start) ;; *) echo "no verb: $1"; exit 64;; esac\n'
        f'test -e "{units}/$2.service" || {{ echo "no unit: $2"; exit 4; }}\n'
    )
    program.chmod(0o755)
