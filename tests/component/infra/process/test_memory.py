"""One heap for all threads."""

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
