"""Many seeds, ``python -m tests.simulation --seeds 100000 --jobs 2``, or one again, ``... --seed 7``.

Prints a line for each seed that fails, with what did not hold, and exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing import get_context

from tests.simulation.story import fault_of, tell

_TOLD = 20
"""So many failing seeds are told with what did not hold."""


def many(seeds: range, jobs: int) -> int:
    """How many of them fail."""
    start, failed = time.monotonic(), 0
    with get_context("forkserver").Pool(jobs) as pool:
        for number, (seed, fault) in enumerate(pool.imap_unordered(fault_of, seeds, chunksize=20), 1):
            if fault is not None:
                failed += 1
                if failed <= _TOLD:
                    print(f"seed {seed}: {fault[:2000]}", flush=True)
            if number % 1000 == 0:
                print(f"{number} told, {failed} failed, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{len(seeds)} seeds from {seeds.start}, {failed} failed, {time.monotonic() - start:.0f} s")
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="tell this one only, and all of its fault")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args(argv)
    if args.seed is None:
        return 1 if many(range(args.first, args.first + args.seeds), args.jobs) else 0
    try:
        tell(args.seed)
    except Exception:  # noqa: BLE001  # it is told whole
        traceback.print_exc()
        return 1
    print(f"seed {args.seed} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
