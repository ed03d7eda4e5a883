"""Questions to an engine whose link is lost while it is asked."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from polybus import BusError, DeadlineExceeded, Disconnected
from polybus.cluster.durable.jetstream import JetStream
from tests.loops import virtual_asyncio  # noqa: F401

SILENCE = object()


def engine(*outcomes: Any, gone: bool = False) -> Any:
    """A link to an engine that answers so, one question after the other."""
    left, asked = iter(outcomes), list[Any]()

    async def pass_on(question: Any, timeout: float) -> Any:
        asked.append(question.decoded)
        outcome = next(left)
        if outcome is SILENCE:
            await anyio.sleep(timeout)
            raise DeadlineExceeded(question.subject, timeout, "local")
        if isinstance(outcome, BusError):
            raise outcome
        return outcome

    peer = SimpleNamespace(gone=gone, pass_on=pass_on, link=SimpleNamespace(runtime=SimpleNamespace(time=anyio.current_time)))
    return SimpleNamespace(peer=peer, asked=asked)


async def test_a_question_is_asked_again_when_the_link_has_come_back() -> None:
    lost = Disconnected("lost", "an engine", True), Disconnected("down", "an engine", False)
    assert await JetStream(engine(*lost, {"streams": ["A"]})).ask("STREAM.NAMES") == {"streams": ["A"]}


async def test_what_is_removed_is_removed_once_since_it_may_be_gone_already() -> None:
    with pytest.raises(Disconnected):
        await JetStream(engine(Disconnected("lost", "an engine", True), {})).ask("STREAM.DELETE.A")
    assert await JetStream(engine(Disconnected("down", "an engine", False), {})).ask("STREAM.DELETE.A") == {}


async def test_a_link_that_does_not_come_back_is_not_waited_for() -> None:
    with pytest.raises(Disconnected):
        await JetStream(engine(Disconnected("lost", "an engine", True), {}, gone=True)).ask("STREAM.NAMES")


async def test_it_is_asked_as_long_as_there_is_patience_and_no_longer() -> None:
    began = anyio.current_time()
    with pytest.raises(Disconnected):
        await JetStream(engine(*[Disconnected("down", "an engine", False)] * 100), 5.0).ask("STREAM.NAMES")
    assert anyio.current_time() - began == pytest.approx(5.0, abs=0.3)


async def test_what_is_removed_is_waited_for_as_long_as_there_is_patience_and_asked_for_once() -> None:
    began = anyio.current_time()
    gone = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
    with pytest.raises(DeadlineExceeded):  # a store that takes its server longer to remove: asked again, there would be none
        await JetStream(engine(SILENCE, gone), 5.0).ask("STREAM.DELETE.A")
    assert anyio.current_time() - began == pytest.approx(5.0)
    assert await JetStream(engine(SILENCE, {"streams": []}), 5.0).ask("STREAM.NAMES") == {"streams": []}


async def test_names_are_asked_for_page_after_page() -> None:
    pages = [{"total": 5, "consumers": ["A", "B"]}, {"total": 5, "consumers": ["a b", "C"]}, {"total": 5, "consumers": ["D"]}]
    link = engine(*pages)
    assert await JetStream(link).consumers("S") == ["A", "B", "C", "D"]
    assert link.asked == [{"offset": 0}, {"offset": 2}, {"offset": 4}]
    link = engine({"total": 1, "streams": ["A"]})
    assert await JetStream(link).streams("s.>") == ["A"]
    assert link.asked == [{"subject": "s.>", "offset": 0}]
    short = engine({"total": 9, "consumers": ["A"]}, {"total": 9, "consumers": []})  # the total never comes
    assert await JetStream(short).consumers("S") == ["A"]


@pytest.mark.parametrize("said", [{}, {"consumers": None}, {"consumers": "AB"}, {"total": "x", "consumers": [7, None, ">"]}])
async def test_an_answer_without_names_has_none(said: dict[str, Any]) -> None:
    assert await JetStream(engine(said)).consumers("S") == []


async def test_an_engine_that_has_no_end_of_names_is_asked_for_some() -> None:
    for size in (1024, 1):
        link = engine(*[{"total": 2**63, "consumers": ["A"] * size}] * 200)
        assert len(await JetStream(link).consumers("S")) == len(link.asked) * size == 98 * size
