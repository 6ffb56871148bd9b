"""python fork_server.py SOCKET OPTIONS: import modules, then fork Python programs on request.

Standard library only, as the published client's interpreter runs it too. A request is a JSON object and four
descriptors: the standard streams and ``life``, on which the server says the pid, and how the program has ended. The
program stays a zombie until the other end of ``life`` is closed, so that its pid is nobody else's meanwhile. It differs
from one that was executed only in what is imported already.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

LIMIT = 1 << 17


class Server:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._pids: dict[int, int] = {}
        self._untold: set[int] = set()
        self._unwanted: set[int] = set()
        """Pids of programs that nobody waits for any more; they may run on."""
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def next_program(self) -> dict[str, Any]:
        """Serve until the other side closes. In a child it returns what the child is to be."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        for fd in (self._requests.fileno(), self._woken):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._woken:
                    os.read(fd, 4096)
                elif fd in self._pids:
                    poll.unregister(fd)
                    self._untold.discard(fd)
                    os.close(fd)
                    self._unwanted.add(self._pids.pop(fd))
                else:
                    data, fds, _, _ = socket.recv_fds(self._requests, LIMIT, 4, socket.MSG_CMSG_CLOEXEC)
                    if not data:
                        os._exit(0)
                    request = json.loads(data)
                    if (pid := os.fork()) == 0:
                        self._become(request, fds)
                        return dict(request)
                    self._pids[fds[3]] = pid
                    self._untold.add(fds[3])
                    poll.register(fds[3], select.POLLRDHUP | select.POLLHUP)
                    say(fds[3], pid)
                    for fd in fds[:3]:
                        os.close(fd)
            self._tell_ends()

    def _tell_ends(self) -> None:
        for life in list(self._untold):
            ended = os.waitid(os.P_PID, self._pids[life], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._untold.discard(life)
                say(life, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
        self._unwanted = {pid for pid in self._unwanted if os.waitpid(pid, os.WNOHANG) == (0, 0)}

    def _become(self, request: dict[str, Any], fds: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if request["session"]:
            os.setsid()
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
        self._requests.close()
        for fd in (*fds, *self._pids, self._woken, self._wake):
            os.close(fd)
        before = os.environ.get("PYTHONPATH", "")
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        present = os.environ.get("PYTHONPATH", "")
        if present != before:
            former = before.split(os.pathsep)
            sys.path[:] = [*filter(None, present.split(os.pathsep)), *(p for p in sys.path if p not in former)]
        if "PYTHONUNBUFFERED" in os.environ:
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # it is a text stream


def say(life: int, number: int) -> None:
    try:
        os.write(life, b"%d" % number)
    except OSError:
        return  # nobody listens any more


def run(words: list[str]) -> None:
    """What ``python WORDS`` does."""
    kind, *rest = words
    if kind == "-m":
        module, *arguments = rest
        sys.argv = [module, *arguments]
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        code, *arguments = rest
        sys.argv = ["-c", *arguments]
        sys.path.insert(0, "")
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    options = json.loads(sys.argv[2])
    del sys.path[0]  # the folder of this script
    for name in options["modules"]:
        importlib.import_module(name)
    forgotten = tuple(options["forget"])
    for name in [name for name in sys.modules if forgotten and (name + ".").startswith(forgotten)]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    program = Server(socket.socket(fileno=int(sys.argv[1]))).next_program()
    run(program["words"])


if __name__ == "__main__":
    main()
