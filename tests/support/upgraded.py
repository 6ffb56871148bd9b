"""The set-up of ``deploy/`` with an earlier version, whose daemons are replaced one by one."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.deployment import Deployment


class UpgradedDeployment(Deployment):
    """Daemons of the earlier version, until ``upgrade`` replaces them one by one."""

    def __init__(self, folder: Path, servers: Path, earlier: Path) -> None:
        super().__init__(folder, servers)
        self._earlier = earlier
        self._is_upgraded: set[str] = set()

    def _earlier_environment(self) -> dict[str, str]:
        return {name: value for name, value in self.environment().items() if name != "PYTHONPATH"}

    def command(self, *words: str) -> str:
        if "manager" in self._is_upgraded:
            return super().command(*words)
        program = self._earlier.with_name("backend.ai")
        done = subprocess.run(
            [program, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=self._earlier_environment(),
            cwd=self.root,
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start_one(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        if name in self._is_upgraded:
            super().start_one(name, env=env)
            return
        words = self.words_of(name)
        with (self.root / f"{name}.log").open("ab") as output:
            self.daemons[name] = subprocess.Popen(  # type: ignore[assignment]  # of the same methods
                [str(self._earlier), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self._earlier_environment(), **(env or {})},
                cwd=self.root,
                start_new_session=True,
            )

    def upgrade(self, name: str) -> None:
        """Stops a daemon as its unit does, and starts this version in its place."""
        process = self.daemons.pop(name)
        process.terminate()
        assert process.wait(60) is not None
        self._is_upgraded.add(name)
        self.start_one(name)
