"""The daemons of a separate cluster, started and killed one by one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ai.backend.standalone.daemon import make_keys
from ai.backend.standalone.instance import ClusterFile, write_cluster_file
from ai.backend.standalone.layout import Layout
from tests.support.cluster import Cluster, free_port, wait_until
from tests.support.forked import ForkedPopen
from tests.support.migrated import migrated

MANAGER = "manager"
AGENT = "i-local"


class SeparateCluster(Cluster):
    """Manager and one agent as processes that nobody starts again but the test."""

    def __init__(self, data_dir: Path, *, manager_config: Path | None = None) -> None:
        super().__init__(data_dir)
        self.layout = Layout(data_dir)
        self.layout.make()
        write_cluster_file(
            self.layout.cluster,
            ClusterFile(
                port=self.port,
                rpc_port=free_port(),
                agents=1,
                separate=True,
                mock="default",
                manager_config=str(manager_config) if manager_config is not None else None,
            ),
        )
        make_keys(self.layout, [AGENT])
        migrated(self.layout.database)
        self.daemons: dict[str, ForkedPopen] = {}

    def command(self, name: str) -> list[str]:
        return Layout(self.data_dir).daemon_command(*([MANAGER] if name == MANAGER else ["agent", name]))

    def start_daemon(self, name: str, *, env: Mapping[str, str] | None = None) -> ForkedPopen:
        with (self.layout.logs / f"{name}.out").open("ab") as output:
            process = ForkedPopen(
                self.command(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={k: v for k, v in os.environ.items() if not k.startswith("BACKEND")} | dict(env or {}),
                start_new_session=True,
            )
        self.daemons[name] = process
        return process

    def start_all(self) -> None:
        for name in (MANAGER, AGENT):
            self.start_daemon(name)
        self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(lambda: self.layout.user_env.exists() and self.ready(), what=f"readiness\n{self.logs()}")

    def wait_killed(self, name: str, *, timeout_s: float = 30.0) -> bool:
        """Whether the daemon came to its armed crash point in time; if not, it is alive."""
        try:
            return self.daemons[name].wait(timeout_s) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    def restart_armed(self, name: str, point: str) -> None:
        """Stop a daemon and start it again so that it kills itself at ``point``.

        An agent may have been stopped before it noted the end of the last kernel: it then ends that kernel once more
        as it starts, and dies there. That is not the death that the test wants, so it is started again.
        """
        for _ in range(3):
            self.stop_daemon(name)
            wait_until(lambda: not self.ready(), what=f"the manager noticing that {name} is gone")
            self.start_daemon(name, env={"BACKENDAI_CRASH_POINT": point})
            wait_until(lambda: self.daemons[name].poll() is not None or self.ready(), what="readiness")
            if self.daemons[name].poll() is None:
                return
        raise AssertionError(f"{name} dies at {point} whenever it starts\n{self.logs()}")

    def stop_daemon(self, name: str) -> None:
        process = self.daemons.pop(name)
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill_daemon(self, name: str) -> None:
        process = self.daemons.pop(name)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        for name in reversed(list(self.daemons)):
            self.stop_daemon(name)

    def logs(self) -> str:
        parts = (f"--- {p.name}\n{p.read_text(errors='replace')[-4000:]}" for p in sorted(self.layout.logs.iterdir()))
        return "\n".join(parts)
