"""Prints the functions that one session creation passes, from the HTTP request to the runtime.

A cluster is started in this process, with a ZeroMQ link between its manager and its agent. One session is created over
HTTP. At each milestone the call stack is written down, through tasks up to what created them. A function counts if its
source is below ``src``; what returned before the milestone does not count. Where a loop or a message carries the
creation on, a new stack begins.

`bench/run path` prints the path; its figures fail if the path is too long, or enters a file too often.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Coroutine, Generator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

from ai.backend.standalone.cluster import prepare
from ai.backend.standalone.daemon import Daemon, make_agent, make_keys, make_manager
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.options import UpOptions, agent_ids
from ai.backend.standalone.storage_daemon import StorageDaemon
from bench.cluster import Api, read_exports, temporary_folder
from bench.figures import Figure, benchmark

SOURCE = str(Path(__file__).resolve().parent.parent / "src" / "ai" / "backend") + "/"
MOST_FUNCTIONS = 40
MOST_ENTRIES = 2
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Milestone:
    """``function`` is entered below ``below``, after the milestone before."""

    title: str
    function: str
    below: str


MILESTONES = (
    Milestone("HTTP request to the store", "SqlSessionStore.insert", "SessionsApi.create"),
    Milestone("scheduling loop to the store", "SqlSessionStore.save", "ScheduleLoop.once"),
    Milestone("launch to the link", "ZmqManagerEndpoint._send_message", "LaunchLoop._launch"),
    Milestone("link to the runtime", "ProcessRuntime.create", "ZmqAgentEndpoint._receive"),
)
Stack = tuple[CodeType, ...]


@dataclass(slots=True)
class Tracer:
    """Records the stacks at the milestones. ``stacks`` has one for each milestone that was reached."""

    stacks: list[Stack] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    _creators: WeakKeyDictionary[asyncio.Task[Any], Stack] = field(default_factory=WeakKeyDictionary)

    def start(self) -> None:
        asyncio.get_running_loop().set_task_factory(self._make_task)
        sys.setprofile(self._profile)

    def stop(self) -> None:
        sys.setprofile(None)
        asyncio.get_running_loop().set_task_factory(None)

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **more: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **more)
        self._creators[task] = self._stack(sys._getframe(1))
        return task

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or len(self.stacks) == len(MILESTONES):
            return
        milestone = MILESTONES[len(self.stacks)]
        if frame.f_code.co_qualname != milestone.function:
            return
        stack = self._stack(frame)
        if any(code.co_qualname == milestone.below for code in stack):
            self.stacks.append(stack)
            if len(self.stacks) == len(MILESTONES):
                self.done.set()

    def _stack(self, frame: FrameType | None) -> Stack:
        """The functions of the product that lead to this frame, the outermost first."""
        codes: list[CodeType] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(SOURCE) and not code.co_name.endswith(("comp>", "genexpr>")):
                codes.append(code)
            frame = frame.f_back
        task = _current_task()
        return (self._creators.get(task, ()) if task is not None else ()) + tuple(reversed(codes))


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def parts_of(stacks: Sequence[Stack]) -> list[Stack]:
    """Each stack without what it shares with an earlier one, so that every function of the path is counted once."""
    parts: list[Stack] = []
    for place, stack in enumerate(stacks):
        shared = max((_shared(stack, earlier) for earlier in stacks[:place]), default=0)
        parts.append(stack[shared:])
    return parts


def _shared(one: Stack, other: Stack) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine is not theirs:
            break
        count += 1
    return count


async def trace() -> list[Stack]:
    """Create a session in a cluster of its own. Raises TimeoutError if a milestone is not reached."""
    with temporary_folder() as folder:
        async with AsyncExitStack() as stack:
            layout = Layout(folder)
            layout.make()
            cluster, sockets = prepare(layout, UpOptions(port=0, separate=True, mock="none"))
            for sock in sockets:
                sock.close()
            agents = agent_ids(cluster.agents)
            make_keys(layout, agents)
            daemons: list[Daemon] = [StorageDaemon(layout, cluster), make_manager(layout, cluster)]
            daemons += [make_agent(layout, cluster, agent_id) for agent_id in agents]
            for daemon in daemons:
                stack.push_async_callback(daemon.stop)
                await daemon.start()
            env = read_exports(layout.user_env)
            api = Api(env["BACKEND_ENDPOINT"], env["BACKEND_ACCESS_KEY"], env["BACKEND_SECRET_KEY"])
            await _until_ready(api)
            return await _create_traced(api)


async def _until_ready(api: Api) -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        while not await asyncio.to_thread(_is_ready, api):  # noqa: ASYNC110  # an HTTP server has no event
            await asyncio.sleep(0.05)


def _is_ready(api: Api) -> bool:
    try:
        api.call("GET", "/readyz")
    except RuntimeError:
        return False
    return True


async def _create_traced(api: Api) -> list[Stack]:
    tracer = Tracer()
    tracer.start()
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            name = await asyncio.to_thread(api.create)
            await tracer.done.wait()
    except TimeoutError:
        raise TimeoutError(f"not reached: {MILESTONES[len(tracer.stacks)]}") from None
    finally:
        tracer.stop()
    await asyncio.to_thread(api.destroy, name)
    return tracer.stacks


def file_of(code: CodeType) -> str:
    return code.co_filename.removeprefix(SOURCE)


def entries(parts: Sequence[Stack]) -> Counter[str]:
    """How often each file is entered from another one."""
    count: Counter[str] = Counter()
    before = ""
    for part in parts:
        for code in part:
            if file_of(code) != before:
                before = file_of(code)
                count[before] += 1
    return count


def text_of(parts: Sequence[Stack]) -> str:
    lines, number = [], 0
    for milestone, part in zip(MILESTONES, parts, strict=True):
        lines.append(f"{milestone.title}: {len(part)}")
        for code in part:
            number += 1
            lines.append(f"  {number:3}  {file_of(code)}:{code.co_firstlineno}  {code.co_qualname}")
    return "\n".join(lines) + "\n"


@benchmark("path", "functions that one session creation passes, from the HTTP request to the runtime")
def path() -> Sequence[Figure]:
    parts = parts_of(asyncio.run(trace()))
    sys.stdout.write(text_of(parts))
    entered = entries(parts)
    number = sum(map(len, parts))
    often = max(entered.values())
    return [
        Figure(
            name="creation-path",
            value=number,
            unit="functions",
            target=f"<= {MOST_FUNCTIONS}",
            holds=number <= MOST_FUNCTIONS,
            detail={milestone.title: len(part) for milestone, part in zip(MILESTONES, parts, strict=True)},
        ),
        Figure(
            name="creation-path-entries",
            value=often,
            unit="entries of one file",
            target=f"<= {MOST_ENTRIES}",
            holds=often <= MOST_ENTRIES,
            detail={name: count for name, count in entered.items() if count > MOST_ENTRIES},
        ),
    ]
