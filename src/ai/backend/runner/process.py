"""Processes at the level of system calls: fork, exec, exit codes, protection of the supervisor from the user's code."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
SESSION_PREFIX = "BACKENDAI_SESSION_ENVIRON_"
_START_ONLY = ("LD_", "MALLOC_", "GLIBC_TUNABLES")
_RESET_SIGNALS = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP", "SIGPIPE", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGXFSZ")


def prctl(option: int, value: int) -> bool:
    """Calls prctl(2); returns False if it is unavailable (an interpreter without ctypes) or fails."""
    try:
        # The C half of ctypes alone: importing the whole package costs several times as much at each start.
        import _ctypes

        program = _ctypes.dlopen(None, 2)  # type: ignore[arg-type]  # the stub forgets the program itself
        address = _ctypes.dlsym(program, "prctl")
        result: int = _ctypes.call_function(address, (option, value, 0, 0, 0))
        return result == 0
    except (ImportError, AttributeError, OSError):
        return False


def exit_of(status: int) -> Tuple[int, Optional[int]]:
    """Splits a wait status into (exit code as a shell counts it, signal or None)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, number
    return os.WEXITSTATUS(status), None


def signal_name(number: int) -> str:
    """Returns the name of a signal for messages."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill_group(pid: int, number: int) -> None:
    """Sends a signal to the process group led by `pid`, or to `pid` itself if it left that group."""
    if pid <= 1:
        return  # no group at all: a terminal in whose foreground nobody is says 0, which would be our own
    for send in (os.killpg, os.kill):
        try:
            send(pid, number)
            return
        except (ProcessLookupError, PermissionError):
            continue


def take_environment() -> None:
    """Restores the names of the session's variables, which the agent prefixes: no loader before may follow them."""
    for name in [name for name in os.environ if name.startswith(SESSION_PREFIX)]:
        os.environ[name[len(SESSION_PREFIX) :]] = os.environ.pop(name)


def execute_anew(fds: Sequence[int], home: str) -> None:
    """Executes the child as a new program if the session sets variables that Python reads only at its start."""
    if not any(name.startswith(_START_ONLY) for name in os.environ):
        return
    for fd in fds:
        os.set_inheritable(fd, True)
    script = os.path.join(os.path.dirname(__file__), "runner_main.py")
    arguments = [sys.executable, "-I", "-S", script, "--worker", home, *map(str, fds)]
    os.execve(sys.executable, arguments, common_environment(home))


def common_environment(home: str) -> Dict[str, str]:
    """Returns the environment that the spec promises to every command; values of the agent take precedence."""
    env = {"TERM": "xterm", "LANG": "C.UTF-8", "SHELL": "/bin/bash", "USER": "work"}
    env.update(os.environ)
    env["HOME"] = home
    return env


def detach_child(prefer_oom: bool = True) -> None:
    """Gives a fresh fork of the supervisor its own session, process group and default signal handlers."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for name in _RESET_SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def settle_child() -> None:
    """Makes a child an ordinary process of the user, and the first victim when memory runs out."""
    # The flag is inherited over fork: without this /proc/self would be closed to the user's own code.
    prctl(PR_SET_DUMPABLE, 1)
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, b"500")
        finally:
            os.close(fd)
    except OSError:
        pass  # no /proc, or an agent that has already set a higher score


def spawn(
    argv: Sequence[str],
    env: Dict[str, str],
    cwd: str,
    fds: Tuple[int, int, int],
    keep: Sequence[Tuple[int, int]] = (),
    terminal: bool = False,
) -> int:
    """Forks and executes `argv` in a session of its own with `fds` as 0, 1, 2; returns the pid.

    `keep` lists further (source, target) descriptors. With `terminal`, descriptor 0 becomes the controlling terminal. A
    command that cannot be executed ends with code 127 and a line on its stderr. Raises OSError if the fork fails.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        detach_child()
        settle_child()
        # First away from 0..2, so that no target overwrites a source that is still needed.
        import fcntl

        moved = [(fcntl.fcntl(src, fcntl.F_DUPFD_CLOEXEC, 100), dst) for src, dst in [*zip(fds, range(3)), *keep]]
        for src, dst in moved:
            os.dup2(src, dst)
        if terminal:
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        try:
            os.chdir(cwd)
        except OSError:
            os.chdir("/")
        os.execvpe(argv[0], list(argv), env)
    except (OSError, ValueError) as e:
        os.write(2, f"cannot execute {argv[0]}: {e}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(127)


def close_inherited(keep: int) -> None:
    """Closes every descriptor from 3 up except `keep`, so that children inherit none."""
    try:
        found = [int(name) for name in os.listdir("/proc/self/fd")]
    except (OSError, ValueError):
        found = list(range(3, 1024))
    for fd in found:
        if fd > 2 and fd != keep:
            try:
                os.close(fd)
            except OSError:
                continue  # not open, as the one of the listing itself


def find_executable(*names: str) -> Optional[str]:
    """Returns the absolute path of the first of the named programs on PATH."""
    for name in names:
        for folder in (os.environ.get("PATH") or os.defpath).split(os.pathsep):
            candidate = os.path.join(folder or ".", name)
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return os.path.abspath(candidate)
    return None


def shell_argv(command: str) -> List[str]:
    """Returns the arguments that run a shell command line: by bash if installed (as the spec says), else by sh."""
    return [find_executable("bash", "sh") or "/bin/sh", "-c", command]


def python_version() -> str:
    """Returns the version of the running interpreter, such as `3.11.7`."""
    return "%d.%d.%d" % tuple(sys.version_info[:3])
