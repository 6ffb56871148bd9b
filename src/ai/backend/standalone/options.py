"""What `up` was asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ai.backend.common.errors import InvalidInput

DEFAULT_PORT = 8091
DEFAULT_MOCK = "default"


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``port`` None takes that of the last ``up``, else 8091, else any free one. ``mock`` is a file or ``default``."""

    host: str = "127.0.0.1"
    port: int | None = None
    agents: int = 1
    separate: bool = False
    mock: str | None = None

    def check(self) -> None:
        """Raises InvalidInput for a mock file that is not there."""
        if self.mock not in (None, DEFAULT_MOCK) and not Path(str(self.mock)).is_file():
            raise InvalidInput(f"There is no mock accelerator file {self.mock}.")

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def mock_file(self) -> Path | None:
        """The declared file, if one was named."""
        return Path(self.mock).absolute() if self.mock not in (None, DEFAULT_MOCK) else None


def agent_ids(count: int) -> list[str]:
    """Stable names, so that the next ``up`` finds the same agents."""
    return ["i-local"] if count == 1 else ["i-local", *(f"i-local-{n}" for n in range(2, count + 1))]
