"""The short way to the deadline of the enclosing scopes says what anyio says."""

import asyncio
import math
import types
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus import Bus, DeadlineExceeded, LocalProtocolError
from polybus._util.cancel_scopes import effective_deadline, to_the_end
from polybus._util.event_loop import running_loop
from polybus.testing import pair
from tests.loops import every_loop  # noqa: F401  # a fixture

pytestmark = pytest.mark.timeout(120)  # keeps these tests out of the scope that bounds others
SCOPES = st.lists(st.tuples(st.sampled_from([math.inf, 100.0, 200.0, 300.0]), st.booleans(), st.booleans()), max_size=5)


async def test_it_says_what_anyio_says_whatever_scopes_are_around(anyio_backend: Any) -> None:
    deadline, now = effective_deadline(running_loop()), anyio.current_time()

    @settings(max_examples=60, deadline=None, database=None)
    @given(SCOPES)
    def check(scopes: list[tuple[float, bool, bool]]) -> None:
        with ExitStack() as stack:
            for ahead, shield, cancelled in scopes:
                scope = stack.enter_context(anyio.CancelScope(deadline=now + ahead, shield=shield))
                if cancelled:
                    scope.cancel()
                assert deadline() == anyio.current_effective_deadline()
        assert deadline() == anyio.current_effective_deadline() == math.inf

    check()


async def test_it_sees_the_scopes_of_a_task_group(anyio_backend: Any) -> None:
    deadline, seen = effective_deadline(running_loop()), list[float]()

    async def child() -> None:
        seen.append(deadline())

    with anyio.move_on_after(300) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
    assert seen == [scope.deadline]


STATES = [None, types.SimpleNamespace(cancel_scope=object()), object()]
STATUSES = [object(), types.SimpleNamespace(effectively_cancelled=False, _parent=None, _scope=object())]


@pytest.mark.parametrize(
    ("anyio_backend", "found"), [*(("asyncio", state) for state in STATES), *(("trio", status) for status in STATUSES)]
)
async def test_another_anyio_or_trio_has_its_own_function_taken(
    anyio_backend: str, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = types.SimpleNamespace(_cancel_status=found, get=lambda task: found)
    monkeypatch.setattr("anyio._backends._asyncio._task_states", known)
    if anyio_backend == "trio":
        monkeypatch.setattr("trio.lowlevel.current_task", lambda: known)
    library: Any = trio if anyio_backend == "trio" else anyio
    assert effective_deadline(running_loop()) is library.current_effective_deadline


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_without_states_of_anyio_its_own_function_is_taken(monkeypatch: pytest.MonkeyPatch, anyio_backend: Any) -> None:
    monkeypatch.delattr("anyio._backends._asyncio._task_states")
    assert effective_deadline(running_loop()) is anyio.current_effective_deadline


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_itself_is_walked_over(anyio_backend: Any) -> None:
    assert effective_deadline(running_loop()) is not trio.current_effective_deadline


@pytest.mark.native
def test_a_request_from_another_loop_of_the_same_thread_is_told_so() -> None:
    first, second, paired = asyncio.new_event_loop(), asyncio.new_event_loop(), pair(Bus())

    async def ask() -> None:
        _ = client.request("echo")

    try:
        client = first.run_until_complete(paired.__aenter__())
        with pytest.raises(LocalProtocolError, match="another event loop"):
            second.run_until_complete(ask())
        first.run_until_complete(paired.__aexit__(None, None, None))
    finally:
        first.close()
        second.close()


async def test_a_request_in_a_scope_that_is_over_ends_with_its_deadline(anyio_backend: Any) -> None:
    async with pair(Bus()) as client:
        with anyio.CancelScope() as scope:  # noqa: ASYNC100  # a scope that is over already
            scope.cancel()
            reply = client.request("echo")
        with pytest.raises((DeadlineExceeded, anyio.get_cancelled_exc_class())) as caught:
            await reply
        assert isinstance(caught.value, DeadlineExceeded)


@pytest.mark.parametrize("error", [None, OSError("disk"), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_who_is_cancelled_by_asyncio_is_cancelled_after_the_clean_up_whatever_it_raises(error: BaseException | None) -> None:
    """Such a cancellation comes once: a loop that tries again after an error would never end."""
    told: list[BaseException] = []

    async def clean_up(entered: asyncio.Event, go_on: asyncio.Event) -> None:
        entered.set()
        await go_on.wait()
        if error is not None:
            raise error

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        entered, go_on = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(to_the_end(clean_up, entered, go_on))
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()

    if isinstance(error, KeyboardInterrupt):  # which ends the loop
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    else:
        asyncio.run(main())
        assert told == ([] if error is None else [error])
