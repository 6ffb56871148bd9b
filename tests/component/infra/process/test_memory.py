"""All threads of a daemon allocate from one heap, and receive buffers stay in it."""

from __future__ import annotations

import subprocess
import sys

ALLOCATE = """
import ctypes, sys, threading
from ai.backend.infra.process.memory import share_one_heap

if sys.argv[1] == "one":
    share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
gate = threading.Barrier(8)

def work():
    gate.wait()
    for _ in range(300):
        libc.malloc(4000)  # ctypes lets go of the interpreter's lock
    gate.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fopen.restype = libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def test_threads_share_it() -> None:
    def heaps(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", ALLOCATE, how], check=True, capture_output=True, text=True)
        return done.stdout.count("<heap nr=")

    assert heaps("one") == 1
    assert heaps("many") > 1, "or the test shows nothing"


EXCHANGE = """
import asyncio, ctypes, resource, socket, sys
from ai.backend.infra.process.memory import reuse_receive_buffers

if sys.argv[1] == "reused":
    reuse_receive_buffers()
MESSAGES = 2000

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

class Client(Echo):
    count = 0
    def data_received(self, data):
        self.count += 1
        if self.count == MESSAGES:
            done.set_result(None)
        else:
            self.transport.write(data)

async def main():
    global done
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left, right = socket.socketpair()
    await loop.create_connection(Echo, sock=left)
    _, client = await loop.create_connection(Client, sock=right)
    ctypes.CDLL(None).malloc_trim(0)  # the end of the heap is free for less than a buffer
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    client.transport.write(b"message")
    await done
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

asyncio.run(main())
"""


def test_receive_buffers_are_not_fetched_anew_each_time() -> None:
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", EXCHANGE, how], check=True, capture_output=True, text=True)
        return int(done.stdout)

    assert faults("reused") < 500
    assert faults("fetched") > 3000, "or the test shows nothing"
