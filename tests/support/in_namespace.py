"""A Python program in a network namespace: python -m tests.support.in_namespace NAMESPACE WORDS...

Forked where it can be (:mod:`tests.support.forked`), which `nsenter` cannot.
"""

from __future__ import annotations

import sys

from tests.support.fork_server import run
from tests.support.namespaces import enter

if __name__ == "__main__":
    namespace, *words = sys.argv[1:]
    enter(namespace)
    run(words)
