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

    Arguments = Dict[str, Any]

COMMAND_TIMEOUT_S = 20.0
_MAX_OUTPUT = 1024 * 1024


class Launch:
    """The start of a service. `variables` are those of templates; `arguments` and `env` are rendered.

    The methods named as the prestart actions execute them, in the child.
    """

    def __init__(
        self, name: str, definition: Definition, variables: Dict[str, Any], home: str, arguments: List[str], env: Any
    ) -> None:
        self._name = name
        self._definition = definition
        self._variables = variables
        self._home = home
        self._arguments = arguments
        self._env: Dict[str, str] = env

    def fork(self, null: int, output: int, trouble: int) -> int:
        """Forks the child and returns its pid; a failed start is explained on `trouble`. Raises OSError."""
        pid = os.fork()
        if pid:
            return pid
        reason = ""
        try:
            process.detach_child()
            for source, target in ((null, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            process.close_inherited(trouble)  # before the child becomes an ordinary process of the user
            os.set_inheritable(trouble, False)
            process.settle_child()
            os.chdir(self._home)
            self._execute()
        except BadDefinition as e:
            reason = str(e)
        except OSError as e:
            reason = f"{e.strerror or e}: {e.filename}" if e.filename else str(e)
        except BaseException as e:  # noqa: BLE001  # the last frame of a child: whatever it is, the supervisor learns it
            reason = repr(e)
        finally:
            try:
                os.write(trouble, reason.encode("utf-8", "replace")[:4000])
            except OSError:
                pass  # the supervisor is gone
            os._exit(127)

    def _execute(self) -> None:
        env = process.common_environment(self._home)
        env.update({name: render(text, self._variables) for name, text in self._definition.env.items()})
        env.update(self._env)
        self._env = env
        for action, arguments, ref in self._definition.prestart:
            result = getattr(self, action)(arguments)
            if ref is not None:
                self._variables[ref] = result
        command = self._definition.command
        if isinstance(command, str):
            import shlex

            text = " ".join([render_shell(command, self._variables), *map(shlex.quote, self._arguments)])
            shell = self._definition.shell
            argv = [shell, "-c", text] if shell else process.shell_argv(text)
        else:
            argv = [render(part, self._variables) for part in command or ()] + self._arguments
        try:
            os.execvpe(argv[0], argv, env)
        except OSError as e:
            raise BadDefinition(f"cannot execute {argv[0][:256]}: {e.strerror}") from e

    def write_file(self, arguments: Arguments) -> None:
        path, appends = render(arguments["filename"], self._variables), arguments.get("append")
        # What is not appended to replaces the file: a link that lies there is not followed.
        if not appends and os.path.islink(path):
            os.unlink(path)
        self._write(path, path, "a" if appends else "w", arguments)

    def write_tempfile(self, arguments: Arguments) -> str:
        import tempfile

        # Jupyter reads a file of another name as if it were not there, and the definition of spec 03-05 makes one so.
        fd, path = tempfile.mkstemp(prefix=f"{self._name}-", suffix=".py")
        self._write(fd, path, "w", arguments)
        return path

    def _write(self, target: Any, path: str, mode: str, arguments: Arguments) -> None:
        with open(target, mode, encoding="utf-8") as file:
            file.write("".join(render(line, self._variables) for line in arguments["body"]))
        os.chmod(path, file_mode(arguments.get("mode", "755")))

    def mkdir(self, arguments: Arguments) -> None:
        os.makedirs(render(arguments["path"], self._variables), exist_ok=True)

    def run_command(self, arguments: Arguments) -> Dict[str, str]:
        import subprocess

        command = arguments["command"]
        if isinstance(command, str):
            argv = process.shell_argv(render_shell(command, self._variables))
        else:
            argv = [render(part, self._variables) for part in command]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._env,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BadDefinition(f"{argv[0][:64]} of its prestart took longer than {COMMAND_TIMEOUT_S:g} s") from None
        out, err = (text[:_MAX_OUTPUT].decode("utf-8", "replace") for text in (done.stdout, done.stderr))
        if done.returncode:
            self._print(f"{argv[0]} ended with code {done.returncode}\n{err}")
        return {"out": out, "err": err}

    def log(self, arguments: Arguments) -> None:
        body = arguments["body"]
        text = render(body if isinstance(body, str) else "".join(body), self._variables)
        self._print(f"{'DEBUG' if arguments.get('debug') else 'INFO'}: {text}")

    def _print(self, text: str) -> None:
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)
