"""The core's own ruff.toml refuses clocks, dice, identities and logs."""

import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[3] / "src" / "ai" / "backend" / "core"


def lint(source: str) -> list[str]:
    """Lint a text as if it were a module of the core; return the lines of the report."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise"]
    command += ["--select", "TID251", "--stdin-filename", str(CORE / "planted.py"), "-"]
    done = subprocess.run(command, cwd=CORE, input=source, capture_output=True, text=True, timeout=30, check=False)
    return [line for line in done.stdout.splitlines() if "TID251" in line]


@pytest.mark.parametrize(
    "source",
    [
        "import time\n",
        "from time import monotonic\n",
        "import random\n",
        "from random import Random\n",
        "import secrets\n",
        "import logging\n",
        "import os\n",
        "from uuid import uuid4\n",
        "import uuid\n\nx = uuid.uuid4()\n",
        "import uuid\n\nx = uuid.uuid1()\n",
        "import datetime\n\nx = datetime.datetime.now()\n",
        "from datetime import datetime\n\nx = datetime.now()\n",
        "from datetime import datetime\n\nx = datetime.utcnow()\n",
        "from datetime import date\n\nx = date.today()\n",
    ],
)
def test_a_planted_import_is_refused(source: str) -> None:
    assert lint(source)


@pytest.mark.parametrize("source", ["import uuid\n\nx = uuid.UUID(int=0)\n", "from datetime import timedelta\n"])
def test_the_pure_part_of_a_module_is_allowed(source: str) -> None:
    assert lint(source) == []
