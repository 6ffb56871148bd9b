"""Runs the child of ``up --detach``: python -m ai.backend.standalone.detached DATA_DIR OPTIONS READY_FD."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ai.backend.common.errors import BackendError
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.main import serve
from ai.backend.standalone.options import UpOptions


def main(data_dir: str, options: str, ready_fd: int) -> int:
    os.set_inheritable(ready_fd, False)
    try:
        serve(Layout(Path(data_dir)), msgspec.json.decode(options, type=UpOptions), ready_fd=ready_fd)
    except BackendError as e:
        os.write(ready_fd, f"failed\n{e.message}\n".encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
