"""Starts a service in a child of the supervisor, which must not wait: prestart actions, then the program by exec.

The reason of a failure is written to a pipe that the program's own start closes.
"""

from __future__ import annotations

import os
import sys

from . import process
from .service_definitions import BadDefinition, parse_file_mode, render, render_shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from .service_definitions import Definition

    Arguments = Dict[str, Any]

COMMAND_TIMEOUT_S = 20.0
_MAX_OUTPUT_BYTES = 1024 * 1024


class Launch:
    """Starts a service. `variables` fill templates; `arguments` and `user_environment` are rendered already.

    The methods named as the prestart actions execute them, in the child.
    """

    def __init__(
        self,
        name: str,
        definition: Definition,
        variables: Dict[str, Any],
        home: str,
        arguments: List[str],
        user_environment: Any,
    ) -> None:
        self._name = name
        self._definition = definition
        self._variables = variables
        self._home = home
        self._arguments = arguments
        self._env: Dict[str, str] = user_environment

    def fork(self, null_fd: int, output_fd: int, reason_fd: int) -> int:
        """Forks the service's child, which writes the reason of a failed start to `reason_fd`; returns its pid."""
        pid = os.fork()
        if pid:
            return pid
        reason = ""
        try:
            process.detach_child()
            for source_fd, target_fd in ((null_fd, 0), (output_fd, 1), (output_fd, 2)):
                os.dup2(source_fd, target_fd)
            process.close_inherited(reason_fd)  # before the child becomes an ordinary process of the user
            os.set_inheritable(reason_fd, False)
            process.unprotect_child()
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
                os.write(reason_fd, reason.encode("utf-8", "replace")[:4000])
            except OSError:
                pass  # the supervisor is gone
            os._exit(127)

    def _execute(self) -> None:
        environment = process.common_environment(self._home)
        environment.update(
            {name: render(shell_text, self._variables) for name, shell_text in self._definition.env.items()}
        )
        environment.update(self._env)
        self._env = environment
        for action, arguments, result_name in self._definition.prestart:
            action_result = getattr(self, action)(arguments)
            if result_name is not None:
                self._variables[result_name] = action_result
        command = self._definition.command
        if isinstance(command, str):
            import shlex

            shell_text = " ".join([render_shell(command, self._variables), *map(shlex.quote, self._arguments)])
            shell_path = self._definition.shell
            argv = [shell_path, "-c", shell_text] if shell_path else process.shell_argv(shell_text)
        else:
            argv = [render(argument, self._variables) for argument in command or ()] + self._arguments
        try:
            os.execvpe(argv[0], argv, environment)
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

    def _write(self, path_or_fd: Any, path: str, open_mode: str, arguments: Arguments) -> None:
        with open(path_or_fd, open_mode, encoding="utf-8") as file:
            file.write("".join(render(line, self._variables) for line in arguments["body"]))
        os.chmod(path, parse_file_mode(arguments.get("mode", "755")))

    def mkdir(self, arguments: Arguments) -> None:
        os.makedirs(render(arguments["path"], self._variables), exist_ok=True)

    def run_command(self, arguments: Arguments) -> Dict[str, str]:
        import subprocess

        command = arguments["command"]
        if isinstance(command, str):
            argv = process.shell_argv(render_shell(command, self._variables))
        else:
            argv = [render(argument, self._variables) for argument in command]
        try:
            completed = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._env,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BadDefinition(f"{argv[0][:64]} of its prestart took longer than {COMMAND_TIMEOUT_S:g} s") from None
        stdout_text, stderr_text = (
            output_bytes[:_MAX_OUTPUT_BYTES].decode("utf-8", "replace")
            for output_bytes in (completed.stdout, completed.stderr)
        )
        if completed.returncode:
            self._print_line(f"{argv[0]} ended with code {completed.returncode}\n{stderr_text}")
        return {"out": stdout_text, "err": stderr_text}

    def log(self, arguments: Arguments) -> None:
        body = arguments["body"]
        log_text = render(body if isinstance(body, str) else "".join(body), self._variables)
        self._print_line(f"{'DEBUG' if arguments.get('debug') else 'INFO'}: {log_text}")

    def _print_line(self, text: str) -> None:
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)
