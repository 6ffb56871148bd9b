#!/usr/bin/env -S python3 -IS
"""A stand-in for `nvidia-cuda-mps-control`: one daemon for each pipe folder, which takes the documented commands.

Started with ``-d`` it is the daemon: it leaves its parent, listens on ``control`` in CUDA_MPS_PIPE_DIRECTORY, writes
its environment and every command to ``control.log`` in CUDA_MPS_LOG_DIRECTORY. Otherwise it sends the commands of its
input. A server "runs" once a file ``client`` lies in the shared memory, as the real one starts it for the first client.
A folder ``broken`` beside the pipe folder makes a start fail as a missing GPU does.
"""

import os
import socket
import sys
from pathlib import Path

PIPE = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
LOG = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "control.log"
SERVER = "4711"


def note(text: str) -> None:
    with LOG.open("a") as file:
        file.write(text + "\n")


def answer(command: str) -> str:
    match command.split():
        case ["get_server_list"]:
            return SERVER if Path("/dev/shm/client").exists() else ""
        case ["set_default_device_pinned_mem_limit", "0", limit] if limit.endswith("M"):
            return ""
        case ["set_default_active_thread_percentage", percent] if percent.isdigit():
            return f"{float(percent)}"
        case ["set_device_pinned_mem_limit", server, "0", _] | ["set_active_thread_percentage", server, _]:
            return "" if server == SERVER else "!no such server"
        case ["quit", *_]:
            return ""
        case _:
            return f"!Invalid command: {command}"


def serve() -> None:
    if (PIPE.parent / "broken").exists():
        note("Failed to start : no CUDA-capable device is detected")
        sys.exit(1)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(PIPE / "control"))
    except OSError:
        print("An instance of this daemon is already running", file=sys.stderr)
        sys.exit(1)
    os.chmod(PIPE / "control", 0o666)
    listener.listen()
    if os.fork():
        os._exit(0)
    os.setsid()
    for fd in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    (PIPE / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    note(f"daemon of {os.environ.get('CUDA_VISIBLE_DEVICES')} as {os.getuid()}")
    while True:
        connection, _ = listener.accept()
        with connection:
            command = connection.recv(4096).decode().strip()
            if command != "get_server_list":
                note(command)
            connection.sendall(answer(command).encode() or b"\n")
        if command.startswith("quit"):
            (PIPE / "control").unlink()
            os._exit(0)


def ask() -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(PIPE / "control"))
        except OSError:
            print("Cannot find MPS control daemon process", file=sys.stderr)
            return 1
        connection.sendall(sys.stdin.read().encode())
        text = connection.recv(4096).decode().strip()
    print(text.removeprefix("!"))
    return int(text.startswith("!"))


if __name__ == "__main__":
    if sys.argv[1:] == ["-d"]:
        serve()
    sys.exit(ask())
