"""Services that need no definition in an image: those that every session has, and common ones of Python images."""

from __future__ import annotations

import json
import os

from .service_definitions import BadDefinition, Definition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

LAUNCHER = "launch.json"
"""In a kit: the arguments that start its interpreter, with `{kit}` for its place."""

_JUPYTER = [
    'c.ServerApp.ip = "{host}"\n',
    "c.ServerApp.port = {ports[0]}\n",
    "c.ServerApp.port_retries = 0\n",
    "c.ServerApp.open_browser = False\n",
    'c.IdentityProvider.token = ""\n',
    'c.ServerApp.root_dir = "{home}"\n',
    "c.ServerApp.allow_remote_access = True\n",
    "c.FileContentsManager.delete_to_trash = False\n",
]
_OF_PYTHON: Dict[str, Any] = {
    "http": {
        "command": ["{runtime_path}", "-m", "http.server", "{ports[0]}", "--bind", "{host}"],
        "allowed_arguments": ["--directory"],
    },
    "jupyterlab": {
        "prestart": [{"action": "write_tempfile", "args": {"body": _JUPYTER, "mode": "600"}, "ref": "config"}],
        "command": ["{runtime_path}", "-m", "jupyterlab", "--no-browser", "--config", "{config}"],
        "url_template": "http://{host}:{port}/lab",
    },
    "jupyter": {
        "prestart": [{"action": "write_tempfile", "args": {"body": _JUPYTER, "mode": "600"}, "ref": "config"}],
        "command": ["{runtime_path}", "-m", "notebook", "--no-browser", "--config", "{config}"],
        "url_template": "http://{host}:{port}/tree",
    },
}
INTRINSIC = {"sshd": None, "ttyd": "http://{host}:{port}/"}
"""Services that run in a kit, with their `url_template`."""


def builtin_definition(name: str, runtime: str, kit: Optional[str]) -> Optional[Definition]:
    """Our own definition of a service, None if there is none. Raises BadDefinition where its kit is missing."""
    if name in INTRINSIC:
        program = f"{_literal(kit or '')}/programs/run.py"
        command = [*_launcher(kit), program, name, "--port", "{ports[0]}", "--host", "{host}"]
        return Definition({"command": command, "url_template": INTRINSIC[name]})
    if runtime == "python" and name in _OF_PYTHON:
        return Definition(_OF_PYTHON[name])
    return None


def offered_definition(name: str) -> Definition:
    """What an intrinsic service offers to clients, told without a kit."""
    return Definition({"command": [name], "url_template": INTRINSIC[name]})


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _launcher(kit: Optional[str]) -> List[str]:
    if not kit:
        raise BadDefinition("the agent has no kit for the services that every session has")
    try:
        with open(os.path.join(kit, LAUNCHER), encoding="utf-8") as file:
            arguments = json.load(file)
        return [_literal(str(argument).replace("{kit}", kit)) for argument in arguments]
    except (OSError, ValueError, TypeError) as e:
        raise BadDefinition(f"the kit of the agent cannot be used here: {e}") from e
