"""Work is done beside the caller, in bounded memory, and nothing is left when it is drained."""

from __future__ import annotations

import os
import random
import threading
import time
from functools import partial

import pytest

from tensorprobe.store.background import BackgroundWriter, BufferPool, allocate_plain

PAGE = 4096


def wait_for(event: threading.Event) -> None:
    assert event.wait(60)


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tensorprobe"]


def test_every_job_has_run_and_every_thread_has_ended_after_a_drain() -> None:
    writer = BackgroundWriter()
    done: list[int] = []
    for _ in range(3):
        for number in range(50):
            writer.submit(lambda number=number: done.append(number))  # type: ignore[misc]
        writer.drain()
        assert sorted(done) == list(range(50)) and not own_threads()
        done.clear()


def test_a_drain_without_work_returns() -> None:
    BackgroundWriter().drain()


def test_the_caller_does_not_wait_for_a_job() -> None:
    writer = BackgroundWriter()
    may_go_on = threading.Event()
    writer.submit(partial(wait_for, may_go_on))
    assert own_threads()
    may_go_on.set()
    writer.drain()


def test_what_a_job_raises_reaches_the_drain_and_stops_no_other() -> None:
    writer = BackgroundWriter(threads=1)
    done: list[int] = []
    writer.submit(lambda: done.append(1 // 0))
    writer.submit(lambda: done.append(7))
    with pytest.raises(ZeroDivisionError):
        writer.drain()
    assert done == [7] and not own_threads()
    writer.drain()


def test_a_forked_child_does_not_wait_for_its_parents_work() -> None:
    writer = BackgroundWriter()
    may_go_on = threading.Event()
    writer.submit(partial(wait_for, may_go_on))
    child = os.fork()
    if child == 0:
        try:
            writer.drain()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    may_go_on.set()
    writer.drain()


def test_buffers_never_exceed_the_budget_whoever_asks() -> None:
    pool = BufferPool(budget=16 * PAGE)
    largest: list[int] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(200):
            buffer = pool.take(chance.randrange(1, pool.largest), wait=True)
            assert buffer is not None
            largest.append(pool.held)
            buffer.memory[:] = seed
            time.sleep(0)
            assert (buffer.memory == seed).all(), "nobody else has it"
            pool.give(buffer)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(largest) <= 16 * PAGE and len(largest) == 800


def test_a_full_pool_refuses_or_waits() -> None:
    pool = BufferPool(budget=2 * PAGE)
    first, second = pool.take(PAGE), pool.take(1)
    assert first is not None and second is not None
    assert pool.take(1) is None
    threading.Timer(0.05, pool.give, (first,)).start()
    again = pool.take(PAGE, wait=True)
    assert again is not None and again.memory is first.memory


def test_what_is_larger_than_the_budget_is_never_waited_for() -> None:
    assert BufferPool(budget=2 * PAGE).take(3 * PAGE, wait=True) is None


def test_free_buffers_make_room_for_other_sizes_and_kinds() -> None:
    pool = BufferPool(budget=4 * PAGE)
    small = [pool.take(PAGE) for _ in range(4)]
    for buffer in small:
        assert buffer is not None
        pool.give(buffer)
    large = pool.take(4 * PAGE)
    assert large is not None and pool.held == 4 * PAGE
    pool.give(large)
    other = pool.take(PAGE, lambda size: allocate_plain(size))
    assert other is not None and pool.held == PAGE
    pool.give(other)
    pool.clear()
    assert pool.held == 0


def test_memory_that_cannot_be_had_costs_nothing() -> None:
    pool = BufferPool(budget=4 * PAGE)

    def fail(size: int) -> tuple[object, object]:
        raise MemoryError

    with pytest.raises(MemoryError):
        pool.take(1, fail)  # type: ignore[arg-type]
    assert pool.held == 0 and pool.take(4 * PAGE) is not None
