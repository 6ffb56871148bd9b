"""The event loop in simulated time, and the processes in it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ai.backend.simulator.virtual_time import Process
from ai.backend.simulator.world import NO_FAULTS, World


@pytest.fixture
def world() -> World:
    return World(1, NO_FAULTS)


def test_hours_pass_at_once_and_timers_fire_in_order(world: World) -> None:
    order: list[float] = []

    async def wait(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        order.append(asyncio.get_running_loop().time())

    async def story() -> None:
        await asyncio.gather(wait(7200.0), wait(5.0), wait(60.0))

    world.loop.run_until_complete(world.spawn(None, story()))
    assert order == [5.0, 60.0, 7200.0]
    world.loop.tear_down()


def test_what_asks_for_a_thread_runs_in_place(world: World) -> None:
    threads: list[threading.Thread] = []

    async def story() -> None:
        await asyncio.to_thread(lambda: threads.append(threading.current_thread()))

    world.loop.run_until_complete(world.spawn(None, story()))
    assert threads == [threading.current_thread()]
    world.loop.tear_down()


def test_a_call_that_is_cancelled_is_not_made(world: World) -> None:
    made: list[str] = []
    soon, later = world.loop.call_soon(made.append, "soon"), world.loop.call_later(1.0, made.append, "later")
    world.loop.call_soon_threadsafe(made.append, "from a thread")
    for handle in (soon, later):
        handle.cancel()
    world.loop.run_until_complete(world.spawn(None, asyncio.sleep(2.0)))
    assert made == ["from a thread"]
    assert (soon.cancelled(), later.when()) == (True, 1.0)
    world.loop.tear_down()


def test_a_process_that_dies_runs_nothing_more_not_even_what_is_to_be_cleaned_up(world: World) -> None:
    done: list[str] = []
    process = Process("victim", lambda: done.append("died"))

    async def work() -> None:
        try:
            await asyncio.sleep(10.0)
            done.append("worked")
        finally:
            done.append("cleaned up")

    async def story() -> None:
        world.spawn(process, work())
        await asyncio.sleep(1.0)
        process.kill()
        await asyncio.sleep(100.0)
        assert done == ["died"]

    world.loop.run_until_complete(world.spawn(None, story()))
    world.loop.tear_down()


def test_a_fuse_ends_a_process_at_one_of_its_steps(world: World) -> None:
    steps = 0
    process = Process("victim")
    process.fuse = 5

    async def work() -> None:
        nonlocal steps
        while True:  # it is the mistake
            steps += 1
            await asyncio.sleep(1.0)

    async def story() -> None:
        world.spawn(process, work())
        await asyncio.sleep(100.0)

    world.loop.run_until_complete(world.spawn(None, story()))
    assert not process.is_alive
    assert 1 <= steps <= 5
    world.loop.tear_down()


def test_a_stopped_process_goes_on_where_it_was(world: World) -> None:
    process, times = Process("stopped"), list[float]()

    async def work() -> None:
        await asyncio.sleep(1.0)
        times.append(asyncio.get_running_loop().time())

    async def story() -> None:
        world.spawn(process, work())
        await asyncio.sleep(0.5)
        process.stop()
        await asyncio.sleep(60.0)
        assert times == []
        process.go_on()
        await asyncio.sleep(1.0)

    world.loop.run_until_complete(world.spawn(None, story()))
    assert times == [60.5]
    world.loop.tear_down()


def test_an_endless_loop_is_an_error(world: World) -> None:
    async def story() -> None:
        while True:  # noqa: ASYNC110  # it is the mistake
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="endless loop"):
        world.loop.run_until_complete(world.spawn(None, story()))
    world.loop.tear_down()


def test_sets_of_tasks_are_in_the_order_of_their_making(world: World) -> None:
    async def nothing() -> None: ...

    async def story() -> None:
        tasks = [asyncio.create_task(nothing()) for _ in range(4)]
        assert [hash(task) for task in tasks] == sorted(hash(task) for task in tasks)
        await asyncio.gather(*tasks)

    world.loop.run_until_complete(world.spawn(None, story()))
    world.loop.tear_down()
