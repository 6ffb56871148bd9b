"""Reads the ``model-definition.yaml`` of model folders and the runtime variants, and makes the command of replicas.
Pure.

The schema is described in docs/howto/serve-a-model.md. The file is a user's: it is small, has no aliases and no tags,
and whatever it says is passed to a shell inside the replica's session as quoted words.
"""

from __future__ import annotations

import posixpath
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.yaml_structure import structure_problem
from ai.backend.manager.serving.model import HealthCheck, ServedModel

DEFINITION_FILES = ("model-definition.yaml", "model-definition.yml")
"""The file names of a definition, in the order in which they are tried."""
MAX_DEFINITION_BYTES = 65_536
_MAX_DEPTH = 12
_MAX_COMMAND_BYTES = 16_384
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_VARIANTS = Path(__file__).parent / "variants"

_Text = Annotated[str, Meta(min_length=1, max_length=4096)]
_Words = _Text | Annotated[list[Annotated[str, Meta(max_length=4096)]], Meta(min_length=1, max_length=256)]
_Seconds = Annotated[float, Meta(ge=0, le=86_400)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base class of the parts of a model definition; decoding refuses unknown fields."""


class _HealthCheckPart(_Strict, frozen=True, kw_only=True):
    path: Annotated[str, Meta(max_length=1024, pattern=r"^/[!-~]*$")] = "/health"
    interval: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0
    max_retries: Annotated[int, Meta(ge=1, le=1000)] = 10
    max_wait_time: Annotated[float, Meta(ge=0.1, le=300)] = 15.0
    expected_status_code: Annotated[int, Meta(ge=100, le=599)] = 200
    initial_delay: _Seconds = 60.0


class _CommandArgs(_Strict, frozen=True, kw_only=True):
    command: _Words


class _DirectoryArgs(_Strict, frozen=True, kw_only=True):
    path: _Text


class _FileArgs(_Strict, frozen=True, kw_only=True):
    filename: _Text
    body: (
        Annotated[list[Annotated[str, Meta(max_length=8192)]], Meta(max_length=512)]
        | Annotated[str, Meta(max_length=32_768)]
    )
    mode: Annotated[str, Meta(pattern="^0?[0-7]{3}$")] = "644"
    append: bool = False


class _RunCommand(_Strict, frozen=True, kw_only=True, tag="run_command", tag_field="action"):
    args: _CommandArgs


class _MakeDirectory(_Strict, frozen=True, kw_only=True, tag="mkdir", tag_field="action"):
    args: _DirectoryArgs


class _WriteFile(_Strict, frozen=True, kw_only=True, tag="write_file", tag_field="action"):
    args: _FileArgs


class _ServicePart(_Strict, frozen=True, kw_only=True):
    start_command: _Words
    port: Annotated[int, Meta(ge=1024, le=65_535)] | None = None
    health_check: _HealthCheckPart | None = None
    pre_start_actions: Annotated[list[_RunCommand | _MakeDirectory | _WriteFile], Meta(max_length=32)] = []
    shell: Literal["/bin/sh", "/bin/bash"] = "/bin/sh"


class _ModelPart(_Strict, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
    model_path: Annotated[str, Meta(max_length=1024, pattern=r"^/[ -~]*$")] | None = None
    service: _ServicePart | None = None
    metadata: dict[str, Any] | None = None


class _Definition(_Strict, frozen=True, kw_only=True):
    models: Annotated[list[_ModelPart], Meta(min_length=1, max_length=16)]


class RuntimeVariant(_Strict, frozen=True, kw_only=True):
    """Describes a kind of inference server, as read from a file in ``variants``. ``command`` is None if the user gives
    it; its words, and the values of ``environ``, may have ``{model_path}``, ``{model_name}`` and, which each replica
    has its own of, ``{port}``. The variables ``secrets`` are sealed when a user sets them, and shown to nobody.
    """

    title: str
    command: list[str] | None = None
    health_path: str = "/health"
    initial_delay: float = 60.0
    environ: dict[str, str] = {}
    secrets: list[str] = []


@cache
def runtime_variants() -> Mapping[str, RuntimeVariant]:
    """Returns the runtime variants by name."""
    return {
        path.stem: msgspec.convert(tomllib.loads(path.read_text()), RuntimeVariant)
        for path in sorted(_VARIANTS.glob("*.toml"))
    }


def variant_named(name: str) -> RuntimeVariant:
    """Returns a runtime variant. Raises InvalidInput, which lists the names."""
    try:
        return runtime_variants()[name]
    except KeyError:
        names = ", ".join(runtime_variants())
        message = f"There is no runtime variant {name[:64]!r}; there are: {names}."
        raise InvalidInput(
            message, data={"runtime_variant": "unknown", "available": list(runtime_variants())}
        ) from None


def _malformed_error(file: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{file} of the model folder cannot be used: {reason}.", data={"model_definition": reason})


def read_definition(content: bytes, *, file: str, mount_destination: str, name: str | None = None) -> ServedModel:
    """Returns the model that a definition serves: the model called ``name``, or the only one if there is one model.

    Raises InvalidInput, which names the file and what is wrong in it.
    """
    model = _choose_model(_parse(content, file), file, name)
    service = model.service
    if service is None:
        raise _malformed_error(file, f"the model {model.name!r} has no `service`, so there is nothing to start")
    path = posixpath.normpath(model.model_path or mount_destination)
    if path != mount_destination and not path.startswith(mount_destination.rstrip("/") + "/"):
        raise _malformed_error(
            file, f"`model_path` {path[:128]!r} is not inside of {mount_destination!r}, where it is mounted"
        )
    steps = [_command_of_action(action, file) for action in service.pre_start_actions]
    health_check = service.health_check
    command = _join_steps(steps, _shell_command(service.start_command, file), service.shell, file)
    return ServedModel(
        name=model.name,
        path=path,
        command=command,
        port=service.port,
        health=HealthCheck(**msgspec.structs.asdict(health_check)) if health_check is not None else HealthCheck(),
    )


def variant_service(
    variant: RuntimeVariant, *, name: str, mount_destination: str, command: str | None, port: int | None = None
) -> ServedModel:
    """Returns the model, path and command of a server of a runtime variant, for a folder without a definition.

    ``command`` replaces the variant's. Raises InvalidInput if neither has one.
    """
    placeholder_values = {"model_path": mount_destination, "model_name": name}
    if command is None and variant.command is None:
        message = (
            f"A service of {variant.title} needs a startup command, or a {DEFINITION_FILES[0]} in the model folder."
        )
        raise InvalidInput(message, data={"startup_command": "missing"})
    command_words = [_fill_placeholders(word, placeholder_values) for word in variant.command or ()]
    return ServedModel(
        name=name,
        path=mount_destination,
        command=command if command is not None else f"exec {shlex.join(command_words)}",
        port=port,
        health=HealthCheck(path=variant.health_path, initial_delay=variant.initial_delay),
        environ={
            key: _fill_placeholders(variable_text, placeholder_values) for key, variable_text in variant.environ.items()
        },
    )


def _fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


def _choose_model(definition: _Definition, file: str, name: str | None) -> _ModelPart:
    names = [model.name for model in definition.models]
    if len(set(names)) < len(names):
        raise _malformed_error(file, "two of its models have the same name")
    if name is not None:
        chosen_part = next((model for model in definition.models if model.name == name), None)
        if chosen_part is None:
            raise _malformed_error(file, f"it has no model {name[:64]!r}; it has: {', '.join(names)}")
        return chosen_part
    if len(names) > 1:
        name_list = ", ".join(names)[:256]
        problem = f"it has {len(names)} models ({name_list}), and an endpoint serves one: choose it by model_name"
        raise _malformed_error(file, problem)
    return definition.models[0]


def _parse(content: bytes, file: str) -> _Definition:
    if len(content) > MAX_DEFINITION_BYTES:
        raise _malformed_error(file, f"it is larger than {MAX_DEFINITION_BYTES} bytes")
    try:
        text = content.decode()
        problem = structure_problem(text, _Loader, max_depth=_MAX_DEPTH)
        if problem is not None:
            raise _malformed_error(file, problem)
        return msgspec.convert(yaml.load(text, Loader=_Loader), _Definition, str_keys=True)  # a safe loader
    except yaml.MarkedYAMLError as e:
        line_text = f" in line {e.problem_mark.line + 1}" if e.problem_mark is not None else ""
        raise _malformed_error(file, f"{e.problem or 'it is not YAML'}{line_text}") from None
    except msgspec.ValidationError as e:
        raise _malformed_error(file, str(e).replace("`$.", "`")) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError, OverflowError):
        # AttributeError and OverflowError: of values that a tag declares to be times or numbers
        raise _malformed_error(file, "it is no YAML in UTF-8") from None


def _shell_command(words: str | Sequence[str], file: str) -> str:
    """Returns a command for a shell: a text unchanged, or a list of words with each word quoted."""
    if "\0" in "".join(words):
        raise _malformed_error(file, "a command has a NUL")
    return words if isinstance(words, str) else shlex.join(words)


def _command_of_action(action: _RunCommand | _MakeDirectory | _WriteFile, file: str) -> str:
    match action:
        case _RunCommand(args=args):
            return _shell_command(args.command, file)
        case _MakeDirectory(args=args):
            return shlex.join(["mkdir", "-p", "--", _shell_command([args.path], file) and args.path])
        case _WriteFile(args=args):
            body = args.body if isinstance(args.body, str) else "".join(f"{line}\n" for line in args.body)
            _shell_command([args.filename, body], file)
            quoted_path = shlex.quote(args.filename)
            redirection = ">>" if args.append else ">"
            return f"printf %s {shlex.quote(body)} {redirection} {quoted_path} && chmod {args.mode} -- {quoted_path}"


def _join_steps(steps: Sequence[str], command: str, shell: str, file: str) -> str:
    """Returns one shell command that runs all steps in order, stops at a failure, and finally becomes the server."""
    script = "\n".join(["set -e", *steps, "set +e", f"exec {command}" if _is_simple(command) else command])
    if len(script.encode()) > _MAX_COMMAND_BYTES:
        raise _malformed_error(file, f"its commands are larger than {_MAX_COMMAND_BYTES} bytes")
    return f"exec {shell} -c {shlex.quote(script)}"


def _is_simple(command: str) -> bool:
    """Returns True if a command is one program with arguments, so that the program may replace its shell."""
    return not any(
        shell_character in command for shell_character in ";&|\n(){}<>`"
    ) and not command.lstrip().startswith("exec ")
