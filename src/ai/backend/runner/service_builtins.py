"""Defines the built-in services: those of every session, and common services of Python images."""

from __future__ import annotations

import json
import os
import sys

from .service_definitions import BadDefinition, Definition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

LAUNCHER_FILENAME = "launch.json"
"""The arguments that start the interpreter of a kit; `{kit}` is its directory."""

_JUPYTER_CONFIG = [
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
_JUPYTER_DATA_PATH = "{home}/.cache/backend.ai/jupyter"
JUPYTERLAB_NAME = "jupyterlab"
_PYTHON_SERVICES: Dict[str, Any] = {
    "http": {
        "command": ["{runtime_path}", "-m", "http.server", "{ports[0]}", "--bind", "{host}"],
        "allowed_arguments": ["--directory"],
    },
    "jupyterlab": {
        "prestart": [{"action": "write_tempfile", "args": {"body": _JUPYTER_CONFIG, "mode": "600"}, "ref": "config"}],
        "command": ["{runtime_path}", "-m", "jupyterlab", "--no-browser", "--config", "{config}"],
        "url_template": "http://{host}:{port}/lab",
    },
    "jupyter": {
        "prestart": [{"action": "write_tempfile", "args": {"body": _JUPYTER_CONFIG, "mode": "600"}, "ref": "config"}],
        "command": ["{runtime_path}", "-m", "notebook", "--no-browser", "--config", "{config}"],
        "url_template": "http://{host}:{port}/tree",
    },
}
INTRINSIC_URL_TEMPLATES = {"sshd": None, "ttyd": "http://{host}:{port}/"}
"""Services that run in a kit, with their `url_template`."""


def builtin_definition(
    name: str, runtime: str, kit_path: Optional[str], runtime_path: str = "", service_path: str = ""
) -> Optional[Definition]:
    """Returns the built-in definition of a service; None for an unknown service.

    Raises BadDefinition if the service needs the kit and there is none that can be used. `service_path`: an interpreter
    that has the service's packages, where the one of the session has not.
    """
    if name in INTRINSIC_URL_TEMPLATES:
        script = f"{_escape_braces(kit_path or '')}/programs/run.py"
        command = [*_launcher_arguments(kit_path), script, name, "--port", "{ports[0]}", "--host", "{host}"]
        return Definition({"command": command, "url_template": INTRINSIC_URL_TEMPLATES[name]})
    if runtime == "python" and name in _PYTHON_SERVICES:
        if name == JUPYTERLAB_NAME and service_path:
            return Definition(_with_other_interpreter(_PYTHON_SERVICES[name], runtime_path, service_path))
        return Definition(_PYTHON_SERVICES[name])
    return None


def _with_other_interpreter(definition: Dict[str, Any], runtime_path: str, service_path: str) -> Dict[str, Any]:
    """Returns a service definition with the server in another interpreter and notebooks in the session's own.

    The service is JupyterLab.
    """
    library_name = "python%d.%d" % sys.version_info[:2]
    packages = os.path.join(os.path.dirname(os.path.dirname(service_path)), "lib", library_name, "site-packages")
    kernel_code = (
        "import sys; sys.path.append(%r); from ipykernel.kernelapp import launch_new_instance as go; go()" % packages
    )
    kernel_spec = {
        "argv": [runtime_path, "-c", kernel_code, "-f", "{connection_file}"],
        "display_name": "Python %d.%d" % sys.version_info[:2],
        "language": "python",
        "metadata": {"debugger": True},
    }
    folder = _JUPYTER_DATA_PATH + "/kernels/python3"
    kernel_json = [_escape_braces(json.dumps(kernel_spec))]
    return {
        **definition,
        "prestart": [
            *definition["prestart"],
            {"action": "mkdir", "args": {"path": folder}},
            {"action": "write_file", "args": {"filename": folder + "/kernel.json", "body": kernel_json, "mode": "644"}},
        ],
        "command": [_escape_braces(service_path), *definition["command"][1:]],
        "env": {"JUPYTER_PATH": _JUPYTER_DATA_PATH},
    }


def offered_definition(service_name: str) -> Definition:
    """Returns the definition of an intrinsic service as clients see it.

    The definition does not depend on a kit.
    """
    return Definition({"command": [service_name], "url_template": INTRINSIC_URL_TEMPLATES[service_name]})


def _escape_braces(literal_text: str) -> str:
    return literal_text.replace("{", "{{").replace("}", "}}")


def _launcher_arguments(kit_path: Optional[str]) -> List[str]:
    if not kit_path:
        raise BadDefinition("the agent has no kit for the services that every session has")
    try:
        with open(os.path.join(kit_path, LAUNCHER_FILENAME), encoding="utf-8") as file:
            arguments = json.load(file)
        return [_escape_braces(str(argument).replace("{kit}", kit_path)) for argument in arguments]
    except (OSError, ValueError, TypeError) as e:
        raise BadDefinition(f"the kit of the agent cannot be used here: {e}") from e
