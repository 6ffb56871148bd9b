"""The planted faults, read from ``planted.toml``: see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.simulation.mutations import Mutation

_FILE = Path(__file__).with_suffix(".toml")

MUTATIONS = tuple(Mutation(**fault) for fault in tomllib.loads(_FILE.read_text())["fault"])
