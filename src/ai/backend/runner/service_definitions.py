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

MAX_DEFINITION_BYTES = 256 * 1024
REQUIRED_ARGUMENTS_BY_ACTION = {
    "write_file": {"body", "filename"},
    "write_tempfile": {"body"},
    "mkdir": {"path"},
    "run_command": {"command"},
    "log": {"body"},
}
"""The prestart actions with their required arguments."""
_OPTIONAL_ARGUMENTS_BY_ACTION = {"write_file": {"mode", "append"}, "write_tempfile": {"mode"}, "log": {"debug"}}
_SERVICE_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SHELL_VARIABLE_PATTERN = re.compile(r"(?<!\{)\$\{(?!\{)([^{}]*)\}(?!\})")
_TEMPLATE_FIELD_PATTERN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|\{|\}")
_TEMPLATE_REFERENCE_PATTERN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)((?:\[[^\[\]]+\])*)(![rsa])?(:[^{}]{0,32})?")


class BadDefinition(ValueError):
    """Reports an invalid service definition, or an invalid value that a user adds to a definition."""


def is_name(name: object) -> bool:
    """Returns True if the value is a valid service name."""
    return isinstance(name, str) and _SERVICE_NAME_PATTERN.fullmatch(name) is not None


class Definition:
    """Holds a checked service definition. `command`: arguments, text for a shell, or None for a `noop`."""

    def __init__(self, definition_json: Any) -> None:
        """Checks the fields of `definition_json`, the parsed JSON. Raises BadDefinition."""
        if not isinstance(definition_json, dict):
            raise BadDefinition("a service definition is an object")
        self.noop = definition_json.get("noop") is True
        self.command: Optional[Command] = None if self.noop else _check_command(definition_json.get("command"))
        self.shell = _check_optional_text(definition_json, "shell")
        self.url_template = _check_optional_text(definition_json, "url_template")
        self.env: Dict[str, str] = _check_texts(definition_json.get("env", {}), "env")
        self.allowed_envs = _check_names(definition_json, "allowed_envs")
        self.allowed_arguments = _check_names(definition_json, "allowed_arguments")
        self.default_arguments = _check_arguments(definition_json.get("default_arguments") or {})
        prestart = definition_json.get("prestart", [])
        if not isinstance(prestart, list) or len(prestart) > 64:
            raise BadDefinition("prestart is a list of at most 64 actions")
        self.prestart = [_check_action(action_json) for action_json in prestart]

    def arguments(self, user_arguments: Any) -> List[str]:
        """Returns the service's default arguments, overridden by the user's arguments. Raises BadDefinition."""
        requested_arguments = _check_arguments(user_arguments or {})
        for argument_name in requested_arguments:
            if argument_name not in self.allowed_arguments:
                raise BadDefinition(f"the service takes no argument {argument_name[:64]!r}")
        merged_arguments = {**self.default_arguments, **requested_arguments}
        return [
            text
            for argument_name, argument_texts in merged_arguments.items()
            for text in (argument_name, *argument_texts)
        ]

    def environment(self, user_variables: Any) -> Dict[str, str]:
        """Checks the environment variables that the user sets for the service, and returns them.

        Raises BadDefinition for a variable that the service does not take, or that no environment can have.
        """
        requested_variables = _check_texts(user_variables or {}, "envs")
        for variable_name in requested_variables:
            if variable_name not in self.allowed_envs:
                raise BadDefinition(f"the service takes no variable {variable_name[:64]!r}")
        return requested_variables


def read_definition(service_name: str, definitions_folder: str) -> Optional[Definition]:
    """Reads the image's definition of a service; None if the image has no definition. Raises BadDefinition."""
    definition_path = os.path.join(definitions_folder, f"{service_name}.json")
    try:
        definition_fd = os.open(definition_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise BadDefinition(f"{definition_path} cannot be read: {e.strerror}") from e
    try:
        status = os.fstat(definition_fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_DEFINITION_BYTES:
            raise BadDefinition(f"{definition_path} is no file of at most {MAX_DEFINITION_BYTES} bytes")
        content = os.read(definition_fd, MAX_DEFINITION_BYTES)
    finally:
        os.close(definition_fd)
    try:
        definition_json = json.loads(content)
    except (ValueError, RecursionError) as e:
        raise BadDefinition(f"{definition_path} is no JSON: {e}") from e
    try:
        return Definition(definition_json)
    except BadDefinition as e:
        raise BadDefinition(f"{definition_path}: {e}") from e


def render(template: str, variables: Dict[str, Any]) -> str:
    """Replaces the variables in a template by their values.

    Raises BadDefinition for an unknown variable or an invalid template.
    """

    def fill_field(match: Any) -> str:
        template_field = match.group(0)
        if template_field in ("{{", "}}"):
            return str(template_field[0])
        if match.group(1) is None:
            raise BadDefinition(f"a single brace in {template[:64]!r}: write it twice")
        reference = _TEMPLATE_REFERENCE_PATTERN.fullmatch(match.group(1))
        if reference is None or reference.group(1) not in variables:
            raise BadDefinition(f"{template_field[:64]!r} is no variable")
        try:
            return str(template_field.format(**{reference.group(1): variables[reference.group(1)]}))
        except (LookupError, ValueError, TypeError, AttributeError) as e:
            raise BadDefinition(f"{template_field[:64]!r} cannot be filled in: {e!r}") from e

    return _TEMPLATE_FIELD_PATTERN.sub(fill_field, template)


def render_shell(template: str, variables: Dict[str, Any]) -> str:
    """Replaces the variables in a shell command by their values.

    `${NAME}` is left to the shell, as `${{NAME}}` always is.
    """
    return render(_SHELL_VARIABLE_PATTERN.sub(r"${{\1}}", template), variables)


def _check_command(command_json: Any, description: str = "command") -> Command:
    if isinstance(command_json, str) and command_json.strip():
        return command_json
    if isinstance(command_json, list) and command_json and all(isinstance(part, str) for part in command_json):
        return command_json
    raise BadDefinition(f"{description} is a list of texts, or one text for a shell")


def _check_optional_text(definition_json: Dict[str, Any], field_name: str) -> Optional[str]:
    value = definition_json.get(field_name)
    if value is not None and not isinstance(value, str):
        raise BadDefinition(f"{field_name} is a text")
    return value


def _check_texts(texts_json: Any, description: str) -> Dict[str, str]:
    if not isinstance(texts_json, dict) or not all(isinstance(text, (str, int, float)) for text in texts_json.values()):
        raise BadDefinition(f"{description} maps names to texts")
    if any(not name or "=" in name or "\0" in name or "\0" in str(text) for name, text in texts_json.items()):
        raise BadDefinition(f"{description} has a name or a text that no environment can have")
    return {str(name): str(text) for name, text in texts_json.items()}


def _check_names(definition_json: Dict[str, Any], field_name: str) -> List[str]:
    names_json = definition_json.get(field_name) or []
    if not isinstance(names_json, list) or not all(isinstance(name, str) for name in names_json):
        raise BadDefinition(f"{field_name} is a list of names")
    return names_json


def _check_arguments(arguments_json: Any) -> Dict[str, List[str]]:
    """Returns the checked values of each argument by its name."""
    if not isinstance(arguments_json, dict):
        raise BadDefinition("arguments map names to values")
    arguments_by_name: Dict[str, List[str]] = {}
    for argument_name, given_value in arguments_json.items():
        argument_values = given_value if isinstance(given_value, list) else [] if given_value is None else [given_value]
        if not all(
            isinstance(argument_value, (str, int, float)) and "\0" not in str(argument_value)
            for argument_value in argument_values
        ):
            raise BadDefinition(f"the argument {str(argument_name)[:64]!r} has no plain value")
        arguments_by_name[str(argument_name)] = [str(argument_value) for argument_value in argument_values]
    return arguments_by_name


def _check_action(action_json: Any) -> Tuple[str, Dict[str, Any], Optional[str]]:
    """Checks a prestart action, and returns (action, arguments, name of the variable for the result).

    Raises BadDefinition.
    """
    if not isinstance(action_json, dict) or action_json.get("action") not in REQUIRED_ARGUMENTS_BY_ACTION:
        raise BadDefinition(f"a prestart action is one of {', '.join(REQUIRED_ARGUMENTS_BY_ACTION)}")
    action, arguments, result_name = action_json["action"], action_json.get("args"), action_json.get("ref")
    if not isinstance(arguments, dict) or not REQUIRED_ARGUMENTS_BY_ACTION[action] <= set(arguments):
        raise BadDefinition(f"{action} needs {', '.join(sorted(REQUIRED_ARGUMENTS_BY_ACTION[action]))}")
    unknown_arguments = (
        set(arguments) - REQUIRED_ARGUMENTS_BY_ACTION[action] - _OPTIONAL_ARGUMENTS_BY_ACTION.get(action, set())
    )
    if unknown_arguments:
        raise BadDefinition(f"{action} takes no {min(unknown_arguments)[:64]}")
    if result_name is not None and not (isinstance(result_name, str) and result_name.isidentifier()):
        raise BadDefinition("ref is the name of a variable")
    for path_argument in ("filename", "path"):
        if path_argument in arguments and not isinstance(arguments[path_argument], str):
            raise BadDefinition(f"{path_argument} is a text")
    body = arguments.get("body", [])
    is_text_list = isinstance(body, list) and all(isinstance(line, str) for line in body)
    if not is_text_list and not (action == "log" and isinstance(body, str)):
        raise BadDefinition(f"the body of {action} is a {'text' if action == 'log' else 'list of texts'}")
    if "command" in arguments:
        _check_command(arguments["command"], "the command of run_command")
    if "mode" in arguments:
        parse_file_mode(arguments["mode"])
    return action, arguments, result_name


def parse_file_mode(octal_text: Any) -> int:
    """Parses an octal text as a file's mode. Raises BadDefinition."""
    if isinstance(octal_text, str) and re.fullmatch(r"0?[0-7]{3,4}", octal_text):
        return int(octal_text, 8) & 0o777
    raise BadDefinition("mode is an octal number as a text, such as 755")
