"""Defines the paths of the embedded cluster in its data directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ai.backend.common.errors import InvalidInput


class Layout:
    """Holds the paths below the data directory. Nothing of the cluster lies elsewhere, except cgroups."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "up.lock"
        self.cluster = root / "cluster.json"
        self.database = root / "manager" / "backendai.db"
        self.keys = root / "keys"
        self.app_proxy = root / "app-proxy"
        self.data_socket = root / "link" / "data.sock"
        self.logs = root / "logs"
        self.user_env = root / "env.sh"
        self.admin_env = root / "env-admin.sh"

    def agent(self, agent_id: str) -> Path:
        return self.root / "agents" / agent_id

    def reload_report(self, agent_id: str) -> Path:
        """Returns the file with the result of the agent's last reload."""
        return self.root / "agents" / f"{agent_id}.reload.json"

    def make(self) -> None:
        """Creates the directories, readable by this user only. Raises InvalidInput with the reason if that fails."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for folder in (self.database.parent, self.keys, self.logs, self.root / "agents"):
                folder.mkdir(exist_ok=True)
                folder.chmod(0o700)
            probe_file = self.root / f".probe.{os.getpid()}"
            probe_file.write_bytes(b"x")
            probe_file.unlink()
        except OSError as e:
            raise InvalidInput(f"The data directory {self.root} cannot be used: {e.strerror}.") from None

    def daemon_command(self, daemon: str, *arguments: str) -> list[str]:
        """Returns the command that starts a daemon of the cluster as a separate process."""
        return [sys.executable, "-m", "ai.backend.standalone.daemon", str(self.root), daemon, *arguments]
