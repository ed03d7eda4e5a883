"""Event loops that refuse a time in the past."""

from typing import Any

from polybus._util.event_loop import accept_past_times


class Strict:
    """An event loop as in Pyodide, as far as it is asked here."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def time(self) -> float:
        return 100.0

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        self.asked.append((delay, callback, *args))
        return "a handle"


def test_a_loop_that_refuses_past_times_is_called_at_once_and_changed_once() -> None:
    loop: Any = Strict()
    accept_past_times(loop)
    changed = loop.call_at
    accept_past_times(loop)
    assert loop.call_at is changed
    assert [loop.call_at(when, print, 1) for when in (90.0, 107.5)] == ["a handle"] * 2
    assert loop.asked == [(0.0, print, 1), (7.5, print, 1)]
