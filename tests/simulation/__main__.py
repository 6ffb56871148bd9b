"""Many seeds, ``python -m tests.simulation --seeds 100000 --jobs 2``; one again, ``... --seed 7``, with all that
happened in it, ``--trace FILE``; or every planted fault, ``... --mutations``.

Prints a line for each seed that fails, with what did not hold, or for each planted fault, with the seed that finds it.
Exits with 1 if a seed fails, or if a fault is not found and nothing says why.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.mutations import find
from tests.simulation.planted import MUTATIONS
from tests.simulation.story import cluster_of, fault_of, tell

_SHOWN = 20
"""So many failing seeds are printed with what did not hold."""
_SEEDS_OF_CHUNK, _CHUNKS_OF_PROCESS = 20, 5
"""A process ends before its garbage, some megabytes of each seed, becomes much: that is cheaper than to collect it."""


def many(seeds: range, jobs: int) -> int:
    """How many of them fail."""
    start, failed = time.monotonic(), 0
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.simulation.story"])
    with context.Pool(jobs, gc.disable, maxtasksperchild=_CHUNKS_OF_PROCESS) as pool:
        for number, (seed, fault) in enumerate(pool.imap_unordered(fault_of, seeds, chunksize=_SEEDS_OF_CHUNK), 1):
            if fault is not None:
                failed += 1
                if failed <= _SHOWN:
                    print(f"seed {seed}: {fault[:2000]}", flush=True)
            if number % 1000 == 0:
                print(f"{number} done, {failed} failed, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{len(seeds)} seeds from {seeds.start}, {failed} failed, {time.monotonic() - start:.0f} s")
    return failed


def every_mutation(seeds: int, jobs: int) -> int:
    """How many planted faults no seed finds although nothing says why."""
    missed = unexplained = 0
    with get_context("forkserver").Pool(jobs) as pool:
        for mutation, found in pool.imap_unordered(partial(find, seeds=seeds), MUTATIONS, chunksize=1):
            missed += found is None
            unexplained += found is None and not mutation.why_not
            how = f"seed {found[0]}: {found[1][:200]}" if found is not None else f"NOT FOUND, {mutation.why_not}"
            print(f"{mutation.name}: {how}", flush=True)
    print(f"{len(MUTATIONS)} planted faults, {missed} not found by {seeds} seeds, {unexplained} of them unexplained")
    return unexplained


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one only, with all of its fault")
    parser.add_argument("--trace", type=Path, help="where to write what happened in it")
    parser.add_argument("--seeds", type=int, default=None, help="default: 1000, or 300 for each planted fault")
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--mutations", action="store_true", help="look for the planted faults")
    args = parser.parse_args(argv)
    if args.mutations:
        return 1 if every_mutation(args.seeds or 300, args.jobs) else 0
    if args.seed is None:
        return 1 if many(range(args.first, args.first + (args.seeds or 1000)), args.jobs) else 0
    cluster = cluster_of(args.seed)
    try:
        digest, _ = tell(args.seed, cluster)
    except Exception:  # noqa: BLE001  # it is shown whole
        traceback.print_exc()
        return 1
    finally:
        if args.trace is not None:
            args.trace.write_text("".join(cluster.world.lines))
    print(f"seed {args.seed} holds: {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
