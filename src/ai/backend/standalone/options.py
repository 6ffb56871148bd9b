"""What `up` was asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ai.backend.common.errors import InvalidInput

DEFAULT_PORT = 8091
DEFAULT_MOCK = "default"
NO_MOCK = "none"
SESSIONS_GO_ON = "Sessions go on running; the next `backend.ai up` finds them again."


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """None is as in the last ``up`` on this data directory.

    Without a last one: port 8091 or any free one, one agent, no mock devices. ``mock`` is a file, ``default`` or
    ``none``.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    agents: int | None = None
    separate: bool = False
    mock: str | None = None

    def check(self) -> None:
        """Raises InvalidInput for a mock file that is not there."""
        if self.mock not in (None, DEFAULT_MOCK, NO_MOCK) and not Path(str(self.mock)).is_file():
            raise InvalidInput(f"There is no mock accelerator file {self.mock}.")

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def mock_devices(self, last: str | None) -> str | None:
        """An absolute path, ``default``, or None for no mock devices; ``last`` is what it was last time."""
        if self.mock is None:
            return last
        if self.mock == NO_MOCK:
            return None
        return DEFAULT_MOCK if self.mock == DEFAULT_MOCK else str(Path(self.mock).absolute())


def agent_ids(count: int) -> list[str]:
    """Stable names, so that the next ``up`` finds the same agents."""
    return ["i-local"] if count == 1 else ["i-local", *(f"i-local-{n}" for n in range(2, count + 1))]
