"""Starts a service in a child of the supervisor, which must not wait: prestart actions, then the program by exec.

The reason of a failure is written to a pipe that the program's own start closes.
"""

from __future__ import annotations

import os
import sys

from . import process
from .service_definitions import BadDefinition, file_mode, render, render_shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from .service_definitions import Definition

COMMAND_TIMEOUT_S = 20.0
_MAX_OUTPUT = 1024 * 1024


class Plan:
    """The input of a start. `variables` are those of templates; `arguments` and `env` are rendered."""

    def __init__(
        self, name: str, definition: Definition, variables: Dict[str, Any], home: str, arguments: List[str], env: Any
    ) -> None:
        self.name = name
        self.definition = definition
        self.variables = variables
        self.home = home
        self.arguments = arguments
        self.env: Dict[str, str] = env


def launch(plan: Plan, null: int, output: int, trouble: int) -> int:
    """Forks the child and returns its pid; a failed start is explained on `trouble`. Raises OSError."""
    pid = os.fork()
    if pid:
        return pid
    code = 127
    try:
        process.detach_child()
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        trouble = _keep_only(trouble)
        process.settle_child()
        os.chdir(plan.home)
        _become(plan)
    except BadDefinition as e:
        _tell(trouble, str(e))
    except OSError as e:
        _tell(trouble, f"{e.strerror or e}: {e.filename}" if e.filename else str(e))
    except BaseException as e:  # noqa: BLE001  # the last frame of a child: whatever it is, the supervisor learns it
        _tell(trouble, repr(e))
    finally:
        os._exit(code)


def _keep_only(trouble: int) -> int:
    """Closes all descriptors of the supervisor before the child becomes an ordinary process of the user."""
    process.close_inherited(trouble)
    os.set_inheritable(trouble, False)
    return trouble


def _tell(trouble: int, text: str) -> None:
    try:
        os.write(trouble, text.encode("utf-8", "replace")[:4000])
    except OSError:
        pass  # the supervisor is gone


def _become(plan: Plan) -> None:
    variables = dict(plan.variables)
    env = process.common_environment(plan.home)
    env.update({name: render(text, variables) for name, text in plan.definition.env.items()})
    env.update(plan.env)
    for action, arguments, ref in plan.definition.prestart:
        result = _ACTIONS[action](plan, arguments, variables, env)
        if ref is not None:
            variables[ref] = result
    command = plan.definition.command
    if isinstance(command, str):
        import shlex

        text = " ".join([render_shell(command, variables), *map(shlex.quote, plan.arguments)])
        argv = [plan.definition.shell, "-c", text] if plan.definition.shell else process.shell_argv(text)
    else:
        argv = [render(part, variables) for part in command or ()] + plan.arguments
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as e:
        raise BadDefinition(f"cannot execute {argv[0][:256]}: {e.strerror}") from e


def _write_file(plan: Plan, arguments: Dict[str, Any], variables: Dict[str, Any], env: Dict[str, str]) -> None:
    path = render(arguments["filename"], variables)
    # What is not appended to replaces the file: a link that lies there is not followed.
    if not arguments.get("append") and os.path.islink(path):
        os.unlink(path)
    with open(path, "a" if arguments.get("append") else "w", encoding="utf-8") as file:
        file.write("".join(render(line, variables) for line in arguments["body"]))
    os.chmod(path, file_mode(arguments.get("mode", "755")))


def _write_tempfile(plan: Plan, arguments: Dict[str, Any], variables: Dict[str, Any], env: Dict[str, str]) -> str:
    import tempfile

    # Jupyter reads a file of another name as if it were not there, and the definition of spec 03-05 makes one so.
    fd, path = tempfile.mkstemp(prefix=f"{plan.name}-", suffix=".py")
    with open(fd, "w", encoding="utf-8") as file:
        file.write("".join(render(line, variables) for line in arguments["body"]))
    os.chmod(path, file_mode(arguments.get("mode", "755")))
    return path


def _mkdir(plan: Plan, arguments: Dict[str, Any], variables: Dict[str, Any], env: Dict[str, str]) -> None:
    os.makedirs(render(arguments["path"], variables), exist_ok=True)


def _run_command(
    plan: Plan, arguments: Dict[str, Any], variables: Dict[str, Any], env: Dict[str, str]
) -> Dict[str, str]:
    import subprocess

    command = arguments["command"]
    if isinstance(command, str):
        argv = process.shell_argv(render_shell(command, variables))
    else:
        argv = [render(part, variables) for part in command]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BadDefinition(f"{argv[0][:64]} of its prestart took longer than {COMMAND_TIMEOUT_S:g} s") from None
    out, err = (text[:_MAX_OUTPUT].decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    if done.returncode:
        print(f"{plan.name}: {argv[0]} ended with code {done.returncode}\n{err}", file=sys.stderr, flush=True)
    return {"out": out, "err": err}


def _log(plan: Plan, arguments: Dict[str, Any], variables: Dict[str, Any], env: Dict[str, str]) -> None:
    body = arguments["body"]
    text = render(body if isinstance(body, str) else "".join(body), variables)
    level = "DEBUG" if arguments.get("debug") else "INFO"
    print(f"{plan.name}: {level}: {text}", file=sys.stderr, flush=True)


_ACTIONS = {
    "write_file": _write_file,
    "write_tempfile": _write_tempfile,
    "mkdir": _mkdir,
    "run_command": _run_command,
    "log": _log,
}
