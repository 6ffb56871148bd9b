"""What the examples share: showing the console items of a run."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any


def show(console: Iterable[Sequence[Any]]) -> None:
    """Text goes where the program sent it; media arrive as (MIME type, content), html as text."""
    for kind, data in console:
        if kind == "stdout":
            print(data, end="")
        elif kind == "stderr":
            print(data, end="", file=sys.stderr)
        elif kind == "media":
            mime, content = data
            print(f"[{mime}, {len(content)} characters]")
        else:
            print(f"[{kind}]")
    sys.stdout.flush()
