"""Built-in service definitions: those that every session has, and common ones of Python images."""

from __future__ import annotations

import json
import os
import sys

from .service_definitions import BadDefinition, Definition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

LAUNCHER = "launch.json"
"""The arguments that start the interpreter of a kit; `{kit}` is its directory."""

_JUPYTER = [
    'c.ServerApp.ip = "{host}"\n',
    "c.ServerApp.port = {ports[0]}\n",
    "c.ServerApp.port_retries = 0\n",
    "c.ServerApp.open_browser = False\n",
    "c.ServerApp.allow_root = True\n",
    'c.IdentityProvider.token = ""\n',
    'c.ServerApp.root_dir = "{home}"\n',
    "c.ServerApp.allow_remote_access = True\n",
    "c.FileContentsManager.delete_to_trash = False\n",
]
_JUPYTER_PATH = "{home}/.cache/backend.ai/jupyter"
JUPYTERLAB = "jupyterlab"
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


def builtin_definition(
    name: str, runtime: str, kit: Optional[str], runtime_path: str = "", service_path: str = ""
) -> Optional[Definition]:
    """Returns the built-in definition of a service, None if there is none. Raises BadDefinition if its kit is missing.

    `service_path`: an interpreter that has the service's packages, where the one of the session has not.
    """
    if name in INTRINSIC:
        program = f"{_literal(kit or '')}/programs/run.py"
        command = [*_launcher(kit), program, name, "--port", "{ports[0]}", "--host", "{host}"]
        return Definition({"command": command, "url_template": INTRINSIC[name]})
    if runtime == "python" and name in _OF_PYTHON:
        if name == JUPYTERLAB and service_path:
            return Definition(_beside(_OF_PYTHON[name], runtime_path, service_path))
        return Definition(_OF_PYTHON[name])
    return None


def _beside(definition: Dict[str, Any], runtime_path: str, service_path: str) -> Dict[str, Any]:
    """Runs the server in another interpreter of the same version, and notebooks in the session's own."""
    version = "python%d.%d" % sys.version_info[:2]
    packages = os.path.join(os.path.dirname(os.path.dirname(service_path)), "lib", version, "site-packages")
    code = "import sys; sys.path.append(%r); from ipykernel.kernelapp import launch_new_instance as go; go()" % packages
    kernel = {
        "argv": [runtime_path, "-c", code, "-f", "{connection_file}"],
        "display_name": "Python %d.%d" % sys.version_info[:2],
        "language": "python",
        "metadata": {"debugger": True},
    }
    folder = _JUPYTER_PATH + "/kernels/python3"
    body = [_literal(json.dumps(kernel))]
    return {
        **definition,
        "prestart": [
            *definition["prestart"],
            {"action": "mkdir", "args": {"path": folder}},
            {"action": "write_file", "args": {"filename": folder + "/kernel.json", "body": body, "mode": "644"}},
        ],
        "command": [_literal(service_path), *definition["command"][1:]],
        "env": {"JUPYTER_PATH": _JUPYTER_PATH},
    }


def offered_definition(name: str) -> Definition:
    """Returns what an intrinsic service offers to clients, independent of a kit."""
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
