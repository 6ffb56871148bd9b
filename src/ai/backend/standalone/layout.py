"""The paths of the embedded cluster in its data directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ai.backend.common.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Layout:
    """Holds paths below the data directory. Nothing of the cluster lies elsewhere, except cgroups."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "up.lock"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster.json"

    @property
    def database(self) -> Path:
        return self.root / "manager" / "backendai.db"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def data_socket(self) -> Path:
        """The socket, in a folder that is closed to other users (decision 0139)."""
        return self.root / "link" / "data.sock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def user_env(self) -> Path:
        return self.root / "env.sh"

    @property
    def admin_env(self) -> Path:
        return self.root / "env-admin.sh"

    def agent(self, agent_id: str) -> Path:
        return self.root / "agents" / agent_id

    def make(self) -> None:
        """Creates the directories, readable by this user only.

        Raises:
            InvalidInput: the place cannot be used; the message says why.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for folder in (self.database.parent, self.keys, self.logs, self.root / "agents"):
                folder.mkdir(exist_ok=True)
                folder.chmod(0o700)
            probe = self.root / f".probe.{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as e:
            raise InvalidInput(f"The data directory {self.root} cannot be used: {e.strerror}.") from None
