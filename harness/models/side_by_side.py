"""Works that share nothing, done in threads of which each computes alone.

Threads that share one operation wait for each other at its end, thousands of times in an iteration, and on a machine
that does anything else they wait long. So the cores take different rows, not different parts of one.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

T = TypeVar("T")
Made = TypeVar("Made")


def side_by_side(work: Callable[[T], Made], things: Sequence[T], apart: bool = True) -> list[Made]:
    """Return what ``work`` makes of each thing. Each is made by one thread: no bit depends on how many threads there
    are.

    Not ``apart``, one is made after another, each by all threads.
    """
    threads = torch.get_num_threads()
    if threads == 1 or not apart:
        return [work(thing) for thing in things]
    with twice_differentiable_attention(), _short_turns():
        return list(_threads(threads).map(work, things))


@contextmanager
def _short_turns() -> Iterator[None]:
    """Python's lock changes hands after .1 ms at the latest.

    Whoever calls one short operation after another takes it back before the next has woken up, until that one insists
    on it, by default after 5 ms.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, 1e-4))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    pool, all_there = ThreadPoolExecutor(count, "row"), threading.Barrier(count)

    def begin(_: int) -> None:
        torch.get_num_threads()  # a thread's first look takes over the number of all
        torch.set_num_threads(1)  # of this thread, but also of those that are yet to look
        all_there.wait()

    list(pool.map(begin, range(count)))
    torch.set_num_threads(count)
    return pool


_lock = threading.Lock()
_depth, _leave = 0, None


@contextmanager
def twice_differentiable_attention() -> Iterator[None]:
    """Use the only attention whose gradient has a derivative, for forward passes in the block.

    PyTorch's choice is one for all threads: who leaves first must not take it from the others.
    """
    global _depth, _leave
    with _lock:
        if _depth == 0:
            _leave = sdpa_kernel(SDPBackend.MATH)
            _leave.__enter__()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _leave is not None:
                _leave.__exit__(None, None, None)
