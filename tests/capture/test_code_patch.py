"""A function's calls go to a handler for a while; it stays the object that it is."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from tensorprobe.capture.code_patch import CodePatch


def make(offset: int = 1) -> FunctionType:
    def add(x: int, *, scale: int = 2) -> int:
        """Has a closure, a default and a keyword."""
        return x * scale + offset

    assert isinstance(add, FunctionType)
    return add


class Listener:
    """Notes the calls it hears of."""

    def __init__(self) -> None:
        self.heard: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        self.heard.append((args, kwargs))
        return function(*args, **kwargs)


def test_each_patch_in_turn_hears_its_own_calls() -> None:
    function = make()
    code, attributes = function.__code__, dict(vars(function))
    for number in range(3):
        listener = Listener()
        patch = CodePatch(function, listener)
        assert function(number, scale=3) == number * 3 + 1
        patch.end()
        assert function.__code__ is code and vars(function) == attributes
        assert function(7) == 15
        assert listener.heard == [((number,), {"scale": 3})]


def test_it_may_pause() -> None:
    function, listener = make(), Listener()
    patch = CodePatch(function, listener)
    patch.end()
    function(1)
    patch.begin()
    function(2)
    patch.end()
    assert listener.heard == [((2,), {})]


def test_what_is_changed_between_two_patches_counts() -> None:
    function = make()
    CodePatch(function, Listener()).end()
    function.__kwdefaults__ = {"scale": 5}
    patch = CodePatch(function, Listener())
    assert function(1) == 6
    patch.end()

    def other(x: int, *, scale: int = 2) -> int:
        return (x - scale) * offset

    offset = 1
    function.__code__ = other.__code__
    patch = CodePatch(function, Listener())
    assert function(9) == 4
    patch.end()
    assert function.__code__ is other.__code__


def test_one_inside_another_hears_the_calls_first() -> None:
    function, outer, inner = make(), Listener(), Listener()
    code = function.__code__
    for _ in range(2):
        first = CodePatch(function, outer)
        second = CodePatch(function, inner)
        assert function(1) == 3
        second.end()
        assert function(2) == 5
        first.end()
    assert function.__code__ is code
    assert inner.heard == [((1,), {})] * 2
    assert outer.heard == [((1,), {}), ((2,), {})] * 2


def test_a_call_that_is_in_progress_at_the_end_comes_back() -> None:
    function = make()
    entered, goes_on = threading.Event(), threading.Event()

    def wait(original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        entered.set()
        assert goes_on.wait(20)
        return original(*args, **kwargs)

    patch = CodePatch(function, wait)
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(function(4)))
    thread.start()
    assert entered.wait(20)
    diverting = function.__code__
    patch.end()
    goes_on.set()
    thread.join()
    # Whoever took the code before the end and runs it only now is not heard, but served.
    late = FunctionType(
        diverting,
        function.__globals__,
        "late",
        function.__defaults__,
        function.__closure__,
    )
    assert results == [9] and late(5) == 11


@pytest.mark.parametrize("is_diverted_again", [False, True])
def test_neither_handler_nor_function_is_kept_alive(is_diverted_again: bool) -> None:
    function, listener = make(), Listener()
    CodePatch(function, listener).end()
    if is_diverted_again:
        CodePatch(function, Listener()).end()
    handler_alive, function_alive = weakref.ref(listener), weakref.ref(function)
    del listener
    gc.collect()
    assert handler_alive() is None
    del function
    gc.collect()
    assert function_alive() is None
