"""The set-up of ``deploy/`` with an earlier version, whose daemons are replaced one by one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.deployment import Deployment


class UpgradedDeployment(Deployment):
    """Daemons of the earlier version, until ``upgrade`` replaces them one by one.

    Args:
        earlier: the Python of the earlier version.
        later: the sources of the version whose managers come instead; the other daemons are then of this version.
    """

    def __init__(self, folder: Path, servers: Path, earlier: Path, later: Path) -> None:
        super().__init__(folder, servers)
        self._earlier = earlier
        self._later = later
        self._is_upgraded: set[str] = set()

    def _earlier_environment(self) -> dict[str, str]:
        return {name: value for name, value in self.environment().items() if name != "PYTHONPATH"}

    def _later_environment(self) -> dict[str, str]:
        return {**self.environment(), "PYTHONPATH": str(self._later)}

    def command(self, *words: str) -> str:
        if "manager" in self._is_upgraded:
            program = [sys.executable, "-m", "ai.backend.cli.main"]
            environment = self._later_environment()
        else:
            program = [str(self._earlier.with_name("backend.ai"))]
            environment = self._earlier_environment()
        done = subprocess.run(
            [*program, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment,
            cwd=self.root,
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start_one(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        if name not in self._is_upgraded:
            self._execute(name, self._earlier, {**self._earlier_environment(), **(env or {})})
        elif name.startswith("manager"):
            self._execute(name, Path(sys.executable), {**self._later_environment(), **(env or {})})
        else:
            super().start_one(name, env=env)

    def _execute(self, name: str, python: Path, environment: Mapping[str, str]) -> None:
        with (self.root / f"{name}.log").open("ab") as output:
            self.daemons[name] = subprocess.Popen(  # type: ignore[assignment]  # of the same methods
                [str(python), *self.words_of(name)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.root,
                start_new_session=True,
            )

    def upgrade(self, name: str) -> None:
        """Stops a daemon as its unit does, and starts the newer version in its place."""
        process = self.daemons.pop(name)
        process.terminate()
        assert process.wait(60) is not None
        self._is_upgraded.add(name)
        self.start_one(name)
