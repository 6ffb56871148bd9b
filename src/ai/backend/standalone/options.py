"""Defines the options of `up`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ai.backend.common.errors import InvalidInput
from ai.backend.common.structs import replace

DEFAULT_PORT = 8091
DEFAULT_WEB_PORT = 8090
DEFAULT_COORDINATOR_PORT = 10200
DEFAULT_MOCK = "default"
NONE_WORD = "none"
SESSIONS_GO_ON_MESSAGE = "Sessions go on running; the next `backend.ai up` finds them again."


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of ``up``. None means the value of the last ``up`` on this data directory.

    Without a last one: port 8091 or any free one, one agent, the process runtime, no mock devices. ``mock`` is a file,
    ``default`` or ``none``. ``agent_config`` is a file, a folder with an ``AGENT.toml`` for some agents, or ``none``;
    ``manager_config`` is a file or ``none``. ``app_ports`` are the first and the last port at which apps open in
    browsers, ``web_port`` is the console's.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    agents: int | None = None
    runtime: str | None = None
    separate: bool = False
    mock: str | None = None
    agent_config: str | None = None
    manager_config: str | None = None
    app_ports: tuple[int, int] | None = None
    web_port: int | None = None

    def with_absolute_paths(self) -> UpOptions:
        """Returns the options with absolute paths, since a detached cluster runs in another directory.

        Raises InvalidInput.
        """
        mock = _absolute_path(self.mock, (DEFAULT_MOCK, NONE_WORD), "mock accelerator file")
        if mock not in (None, DEFAULT_MOCK, NONE_WORD):
            _check_declaration(Path(mock))
        agent_config = _absolute_path(self.agent_config, (NONE_WORD,), "agent configuration")
        manager_config = _absolute_path(self.manager_config, (NONE_WORD,), "manager configuration")
        return replace(self, mock=mock, agent_config=agent_config, manager_config=manager_config)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def mock_devices(self, previous: str | None) -> str | None:
        """Returns the declaration of mock devices to use: a path, ``default``, or None for no mock devices.

        Without the option this is ``previous``, the value of the last ``up``.
        """
        return previous if self.mock is None else None if self.mock == NONE_WORD else self.mock

    def agent_files(self, previous: str | None) -> str | None:
        """Returns the path of agents' settings, or None; ``previous`` is that of the last ``up``."""
        return previous if self.agent_config is None else None if self.agent_config == NONE_WORD else self.agent_config

    def manager_file(self, previous: str | None) -> str | None:
        """Returns the path of the manager's settings, or None; ``previous`` is that of the last ``up``."""
        if self.manager_config is None:
            return previous
        return None if self.manager_config == NONE_WORD else self.manager_config


def _check_declaration(path: Path) -> None:
    from ai.backend.accelerator.mock.declaration import Declaration, read_table

    if path.is_dir():
        raise InvalidInput(f"{path} is a folder; --mock takes one file, --agent-config what each agent has of its own.")
    read_table(path, Declaration)


def _absolute_path(path: str | None, special_words: tuple[str, ...], file_kind: str) -> str | None:
    if path is None or path in special_words:
        return path
    if not Path(path).exists():
        raise InvalidInput(f"There is no {file_kind} {path}.")
    return str(Path(path).absolute())


def agent_ids(count: int) -> list[str]:
    """Returns stable ids, so that the next ``up`` starts the same agents."""
    return ["i-local"] if count == 1 else ["i-local", *(f"i-local-{number}" for number in range(2, count + 1))]


def agent_index(agent_id: str) -> int:
    """Returns the position of an agent in the list of :func:`agent_ids`; 0 for any other id."""
    number = agent_id.removeprefix("i-local-")
    return int(number) - 1 if number.isdecimal() else 0
