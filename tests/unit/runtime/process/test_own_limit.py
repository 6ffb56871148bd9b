"""A leader limits itself, never above the hard limit of its own."""

from __future__ import annotations

import os
import resource

from ai.backend.runtime.process.supervisor import launch


def test_a_limit_above_the_hard_one_becomes_the_hard_one() -> None:
    pid = os.fork()
    if not pid:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
            launch._set_limit("RLIMIT_NOFILE", 1 << 20)
            kept = resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 200
            resource.setrlimit(resource.RLIMIT_NPROC, (5000, 5000))
            launch._set_limit("RLIMIT_NPROC", 40)
            kept = kept and resource.getrlimit(resource.RLIMIT_NPROC) == (40, 40)
            os._exit(0 if kept else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
