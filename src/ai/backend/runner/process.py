"""Provides fork, exec and exit codes as system calls, and protects the supervisor from the user's code."""

from __future__ import annotations

import os
import sys

from .light import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
SESSION_PREFIX = "BACKENDAI_SESSION_ENVIRON_"
_START_ONLY_PREFIXES = ("LD_", "MALLOC_", "GLIBC_TUNABLES")
_RESET_SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP", "SIGPIPE", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGXFSZ")


def prctl(option: int, value: int) -> bool:
    """Calls prctl(2); returns False if it is unavailable (an interpreter without ctypes) or fails."""
    try:
        # The C half of ctypes alone: importing the whole package costs several times as much at each start.
        import _ctypes

        program_handle = _ctypes.dlopen(None, 2)  # type: ignore[arg-type]  # the stub forgets the program itself
        function_address = _ctypes.dlsym(program_handle, "prctl")
        result: int = _ctypes.call_function(function_address, (option, value, 0, 0, 0))
        return result == 0
    except (ImportError, AttributeError, OSError):
        return False


def exit_of(wait_status: int) -> Tuple[int, Optional[int]]:
    """Splits a wait status into (exit code as in a shell, signal number or None)."""
    if os.WIFSIGNALED(wait_status):
        signal_number = os.WTERMSIG(wait_status)
        return 128 + signal_number, signal_number
    return os.WEXITSTATUS(wait_status), None


def signal_name(signal_number: int) -> str:
    """Returns the name of a signal for messages."""
    from signal import Signals

    try:
        return Signals(signal_number).name
    except ValueError:
        return f"signal {signal_number}"


def kill_group(pid: int, signal_number: int) -> None:
    """Sends a signal to the process group led by `pid`, or to the process `pid` if there is no such group."""
    if pid <= 1:
        return  # no group at all: a terminal in whose foreground nobody is says 0, which would be our own
    for send_signal in (os.killpg, os.kill):
        try:
            send_signal(pid, signal_number)
            return
        except (ProcessLookupError, PermissionError):
            continue


def restore_session_environment() -> None:
    """Renames the session's environment variables in this process: removes the prefix that the agent added."""
    for name in [name for name in os.environ if name.startswith(SESSION_PREFIX)]:
        os.environ[name[len(SESSION_PREFIX) :]] = os.environ.pop(name)


def reexecute_child(inherited_fds: Sequence[int], home: str) -> None:
    """Restarts the interpreter child by exec if the session sets variables that Python reads only at its start."""
    if not any(name.startswith(_START_ONLY_PREFIXES) for name in os.environ):
        return
    for inherited_fd in inherited_fds:
        os.set_inheritable(inherited_fd, True)
    script_path = os.path.join(os.path.dirname(__file__), "runner_main.py")
    arguments = [sys.executable, "-I", "-S", script_path, "--worker", home, *map(str, inherited_fds)]
    os.execve(sys.executable, arguments, common_environment(home))


def common_environment(home: str) -> Dict[str, str]:
    """Returns the environment variables of every command in a session, as the spec promises them.

    Values of the agent take precedence.
    """
    environment = {"TERM": "xterm", "LANG": "C.UTF-8", "SHELL": "/bin/bash", "USER": "work"}
    environment.update(os.environ)
    user_programs = os.path.join(home, ".local/bin")
    search_path = environment.get("PATH") or os.defpath
    if user_programs not in search_path.split(os.pathsep):  # what `pip install --user` installs (spec 03-01:603)
        environment["PATH"] = user_programs + os.pathsep + search_path
    environment.update({"HOME": home, "LOCAL_USER_ID": str(os.getuid()), "LOCAL_GROUP_ID": str(os.getgid())})
    return environment


def detach_child() -> None:
    """Gives a fresh fork of the supervisor its own session, process group and default signal handlers."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for name in _RESET_SIGNAL_NAMES:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def unprotect_child() -> None:
    """Makes a child an ordinary process of the user, which the kernel kills first when memory runs out."""
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
    environment: Dict[str, str],
    working_directory: str,
    stdio_fds: Tuple[int, int, int],
    extra_fds: Sequence[Tuple[int, int]] = (),
    has_terminal: bool = False,
) -> int:
    """Forks and executes `argv` in a session of its own with `stdio_fds` as 0, 1, 2; returns the pid.

    `extra_fds` lists further (source, target) descriptors. With `has_terminal`, descriptor 0 becomes the controlling
    terminal. A command that cannot be executed ends with code 127 and a stderr line. Raises OSError if no fork works.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        detach_child()
        unprotect_child()
        # First away from 0..2, so that no target overwrites a source that is still needed.
        import fcntl

        moved_fds = [
            (fcntl.fcntl(source_fd, fcntl.F_DUPFD_CLOEXEC, 100), target_fd)
            for source_fd, target_fd in [*zip(stdio_fds, range(3)), *extra_fds]
        ]
        for source_fd, target_fd in moved_fds:
            os.dup2(source_fd, target_fd)
        if has_terminal:
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        try:
            os.chdir(working_directory)
        except OSError:
            os.chdir("/")
        os.execvpe(argv[0], list(argv), environment)
    except (OSError, ValueError) as e:
        os.write(2, f"cannot execute {argv[0]}: {e}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(127)


def close_inherited(kept_fd: int) -> None:
    """Closes every descriptor from 3 up except `kept_fd`, so that children inherit none."""
    try:
        open_fds = [int(fd_name) for fd_name in os.listdir("/proc/self/fd")]
    except (OSError, ValueError):
        open_fds = list(range(3, 1024))
    for fd in open_fds:
        if fd > 2 and fd != kept_fd:
            try:
                os.close(fd)
            except OSError:
                continue  # not open, as the one of the listing itself


def find_executable(*program_names: str) -> Optional[str]:
    """Returns the absolute path of the first named program that is on PATH; None if no program is found."""
    for program_name in program_names:
        for folder in (os.environ.get("PATH") or os.defpath).split(os.pathsep):
            candidate = os.path.join(folder or ".", program_name)
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return os.path.abspath(candidate)
    return None


def shell_argv(command: str) -> List[str]:
    """Returns the arguments that run a shell command line: by bash if installed (as the spec says), else by sh."""
    return [find_executable("bash", "sh") or "/bin/sh", "-c", command]


def python_version() -> str:
    """Returns the version of the running Python interpreter, such as `3.11.7`."""
    return "%d.%d.%d" % tuple(sys.version_info[:3])


def restrict_ssh_keys(folder: str) -> None:
    """Sets the modes of a `.ssh` folder (0700) and its files (0600), since ssh ignores keys that others may read.

    See spec 03-11:510. Links stay as they are. Stops without an error at the first file that cannot be changed.
    """
    try:
        if os.path.islink(folder):
            return
        os.chmod(folder, 0o700)
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                os.chmod(entry.path, 0o600)
    except OSError:
        pass  # there is no such folder, or it is mounted read-only
