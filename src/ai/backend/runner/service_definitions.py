"""Reads and renders the service definitions of images (spec 03-05, "Service Definition DSL").

Templates follow Python's brace formatting over plain values: items (`{ports[0]}`, `{made[out]}`), no attributes.
"""

from __future__ import annotations

import json
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple, Union

    Command = Union[str, List[str]]

MAX_SIZE = 256 * 1024
ACTIONS = {
    "write_file": {"body", "filename"},
    "write_tempfile": {"body"},
    "mkdir": {"path"},
    "run_command": {"command"},
    "log": {"body"},
}
"""The prestart actions with their required arguments."""
_OPTIONAL = {"write_file": {"mode", "append"}, "write_tempfile": {"mode"}, "log": {"debug"}}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SHELL_VARIABLE = re.compile(r"(?<!\{)\$\{(?!\{)([^{}]*)\}(?!\})")
_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|\{|\}")
_REFERENCE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)((?:\[[^\[\]]+\])*)(![rsa])?(:[^{}]{0,32})?")


class BadDefinition(ValueError):
    """A definition, or a value that a user adds to it, is invalid."""


def is_name(name: object) -> bool:
    """Returns True if the name is a valid service name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class Definition:
    """A service definition. `command`: arguments, or text for a shell, or None of a `noop`, which others start."""

    def __init__(self, data: Any) -> None:
        """Checks all of `data`, the parsed JSON. Raises BadDefinition."""
        if not isinstance(data, dict):
            raise BadDefinition("a service definition is an object")
        self.noop = data.get("noop") is True
        self.command: Optional[Command] = None if self.noop else _command(data.get("command"))
        self.shell = _optional_text(data, "shell")
        self.url_template = _optional_text(data, "url_template")
        self.env: Dict[str, str] = _texts(data.get("env", {}), "env")
        self.allowed_envs = _names(data, "allowed_envs")
        self.allowed_arguments = _names(data, "allowed_arguments")
        self.default_arguments = _arguments(data.get("default_arguments") or {})
        prestart = data.get("prestart", [])
        if not isinstance(prestart, list) or len(prestart) > 64:
            raise BadDefinition("prestart is a list of at most 64 actions")
        self.prestart = [_action(item) for item in prestart]

    def arguments(self, given: Any) -> List[str]:
        """Returns the default arguments, overridden by the user's. Raises BadDefinition."""
        asked = _arguments(given or {})
        for name in asked:
            if name not in self.allowed_arguments:
                raise BadDefinition(f"the service takes no argument {name[:64]!r}")
        found: List[str] = []
        for name, values in {**self.default_arguments, **asked}.items():
            found += [name, *values]
        return found

    def environment(self, given: Any) -> Dict[str, str]:
        """Returns the variables that a user sets. Raises BadDefinition."""
        asked = _texts(given or {}, "envs")
        for name in asked:
            if name not in self.allowed_envs:
                raise BadDefinition(f"the service takes no variable {name[:64]!r}")
        return asked


def read_definition(name: str, folder: str) -> Optional[Definition]:
    """Reads the image's definition of a service; None if it has none. Raises BadDefinition."""
    path = os.path.join(folder, f"{name}.json")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise BadDefinition(f"{path} cannot be read: {e.strerror}") from e
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_SIZE:
            raise BadDefinition(f"{path} is no file of at most {MAX_SIZE} bytes")
        content = os.read(fd, MAX_SIZE)
    finally:
        os.close(fd)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as e:
        raise BadDefinition(f"{path} is no JSON: {e}") from e
    try:
        return Definition(data)
    except BadDefinition as e:
        raise BadDefinition(f"{path}: {e}") from e


def render(template: str, variables: Dict[str, Any]) -> str:
    """Renders a template. Raises BadDefinition for an unknown variable or an invalid template."""

    def fill(match: Any) -> str:
        whole = match.group(0)
        if whole in ("{{", "}}"):
            return str(whole[0])
        if match.group(1) is None:
            raise BadDefinition(f"a single brace in {template[:64]!r}: write it twice")
        reference = _REFERENCE.fullmatch(match.group(1))
        if reference is None or reference.group(1) not in variables:
            raise BadDefinition(f"{whole[:64]!r} is no variable")
        try:
            return str(whole.format(**{reference.group(1): variables[reference.group(1)]}))
        except (LookupError, ValueError, TypeError, AttributeError) as e:
            raise BadDefinition(f"{whole[:64]!r} cannot be filled in: {e!r}") from e

    return _FIELD.sub(fill, template)


def render_shell(template: str, variables: Dict[str, Any]) -> str:
    """Renders a shell command. `${NAME}` stays the shell's, as `${{NAME}}` does by the rules of templates."""
    return render(_SHELL_VARIABLE.sub(r"${{\1}}", template), variables)


def _command(value: Any, what: str = "command") -> Command:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return value
    raise BadDefinition(f"{what} is a list of texts, or one text for a shell")


def _optional_text(data: Dict[str, Any], name: str) -> Optional[str]:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise BadDefinition(f"{name} is a text")
    return value


def _texts(value: Any, what: str) -> Dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, (str, int, float)) for v in value.values()):
        raise BadDefinition(f"{what} maps names to texts")
    if any(not name or "=" in name or "\0" in name or "\0" in str(text) for name, text in value.items()):
        raise BadDefinition(f"{what} has a name or a text that no environment can have")
    return {str(name): str(text) for name, text in value.items()}


def _names(data: Dict[str, Any], name: str) -> List[str]:
    value = data.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadDefinition(f"{name} is a list of names")
    return value


def _arguments(value: Any) -> Dict[str, List[str]]:
    """Yields each argument name without value, with one, or with several."""
    if not isinstance(value, dict):
        raise BadDefinition("arguments map names to values")
    found: Dict[str, List[str]] = {}
    for name, given in value.items():
        values = given if isinstance(given, list) else [] if given is None else [given]
        if not all(isinstance(item, (str, int, float)) and "\0" not in str(item) for item in values):
            raise BadDefinition(f"the argument {str(name)[:64]!r} has no plain value")
        found[str(name)] = [str(item) for item in values]
    return found


def _action(item: Any) -> Tuple[str, Dict[str, Any], Optional[str]]:
    """Returns (action, arguments, ref), checked."""
    if not isinstance(item, dict) or item.get("action") not in ACTIONS:
        raise BadDefinition(f"a prestart action is one of {', '.join(ACTIONS)}")
    action, arguments, ref = item["action"], item.get("args"), item.get("ref")
    if not isinstance(arguments, dict) or not ACTIONS[action] <= set(arguments):
        raise BadDefinition(f"{action} needs {', '.join(sorted(ACTIONS[action]))}")
    unknown = set(arguments) - ACTIONS[action] - _OPTIONAL.get(action, set())
    if unknown:
        raise BadDefinition(f"{action} takes no {min(unknown)[:64]}")
    if ref is not None and not (isinstance(ref, str) and ref.isidentifier()):
        raise BadDefinition("ref is the name of a variable")
    for name in ("filename", "path"):
        if name in arguments and not isinstance(arguments[name], str):
            raise BadDefinition(f"{name} is a text")
    if "body" in arguments and not _is_body(arguments["body"], action):
        raise BadDefinition(f"the body of {action} is a {'text' if action == 'log' else 'list of texts'}")
    if "command" in arguments:
        _command(arguments["command"], "the command of run_command")
    if "mode" in arguments:
        file_mode(arguments["mode"])
    return action, arguments, ref


def _is_body(body: Any, action: str) -> bool:
    if isinstance(body, str):
        return action == "log"
    return isinstance(body, list) and all(isinstance(line, str) for line in body)


def file_mode(text: Any) -> int:
    """Parses an octal text as a file's mode. Raises BadDefinition."""
    if isinstance(text, str) and re.fullmatch(r"0?[0-7]{3,4}", text):
        return int(text, 8) & 0o777
    raise BadDefinition("mode is an octal number as a text, such as 755")
