"""Runs several commands of the published client in one process of its environment: most of their time is its start.

Standard input is a JSON list of argument lists, standard output one of ``[stdout, stderr, exit code]``. Whatever is
asked is agreed to.
"""

from __future__ import annotations

import importlib
import json
import sys
from io import StringIO

main = importlib.import_module("ai.backend.cli.__main__").main  # the published client's


class _Yes(StringIO):
    """An endless supply of consent."""

    def readline(self, *_: object) -> str:  # type: ignore[override]  # typeshed's StringIO inherits the bytes of a base
        return "y\n"

    def read(self, *_: object) -> str:
        return "y"


def _run(arguments: list[str]) -> tuple[str, str, int]:
    out, err = StringIO(), StringIO()
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = _Yes(), out, err
    code = 0
    try:
        main(args=arguments, prog_name="backend.ai", standalone_mode=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # a crash of the client is what the checks look for
        import traceback

        traceback.print_exc(file=err)
        code = 1
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
    return out.getvalue(), err.getvalue(), code


if __name__ == "__main__":
    json.dump([_run(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
