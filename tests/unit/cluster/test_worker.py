"""A worker's side of what it shares with its supervisor: sockets, questions and answers, and the end of either."""

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from attrs import define

from polybus import LocalProtocolError
from polybus.cluster.worker import ASK, ASK_METRICS, Inheritance, Worker


@define
class Family:
    """A worker in this process, and what its supervisor would hold."""

    worker: Worker
    inherited: Inheritance
    supervisor: socket.socket
    lifeline: int

    def told(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.supervisor.recv(65536))
        return said


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    """Worker 2, which serves on one socket."""
    monkeypatch.setattr(multiprocessing.current_process(), "name", "as before")
    reading, writing = os.pipe()
    mine, theirs = socket.socketpair()
    listening = socket.create_server(("127.0.0.1", 0))
    inherited = Inheritance(2, reading, theirs.detach(), {"bus": [listening.fileno()]})
    found = Family(Worker(inherited), inherited, mine, writing)
    yield found
    found.worker._reports.close()
    mine.close()
    listening.close()
    os.close(reading)
    if found.lifeline >= 0:
        os.close(found.lifeline)


def test_a_worker_has_the_sockets_of_its_names_and_says_which_there_are(family: Family) -> None:
    (listening,) = family.worker.sockets("bus")
    assert listening.getsockname()[0] == "127.0.0.1"
    listening.detach()
    with pytest.raises(LocalProtocolError, match="worker 2 serves 'other', but the supervisor has bound bus"):
        family.worker.sockets("other")
    assert multiprocessing.current_process().name == "worker 2"
    assert not any(os.get_inheritable(file) for file in family.inherited.files)


def test_a_worker_tells_where_it_serves_and_why_it_cannot(family: Family) -> None:
    family.worker.tell_served(["tcp://127.0.0.1:1"])
    assert family.told() == {"serves": ["tcp://127.0.0.1:1"]}
    assert family.worker.tell_why_not("x" * 5000)
    assert family.told() == {"cannot": "x" * 4000}
    family.supervisor.close()
    assert not family.worker.tell_why_not("nobody hears it")


async def test_a_worker_answers_until_its_supervisor_is_gone(family: Family) -> None:
    why, asked = "", 0

    async def metrics() -> str:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise RuntimeError("a hook of the application's own")
        return "polybus_peers 3\n"

    async def answered(question: bytes) -> Any:
        family.supervisor.send(question)
        await anyio.wait_readable(family.supervisor)
        return family.told()

    async with anyio.create_task_group() as group:
        group.start_soon(family.worker.answer, lambda: why, metrics)
        assert await answered(ASK) == {"ready": True, "why": ""}
        why = "why not"
        assert await answered(ASK) == {"ready": False, "why": "why not"}
        assert await answered(ASK_METRICS) == {"metrics": "polybus_peers 3\n"}
        assert await answered(ASK_METRICS) == {"metrics": None}
        assert await answered(ASK_METRICS) == {"metrics": "polybus_peers 3\n"}
        family.supervisor.close()
    assert asked == 3


def test_a_worker_without_its_supervisor_is_asked_to_end_and_then_killed(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: done.append((pid, number)))
    monkeypatch.setattr(time, "sleep", done.append)
    family.worker.follow(2.0)
    (follower,) = [thread for thread in threading.enumerate() if thread.name == "polybus lifeline"]
    assert not done
    os.close(family.lifeline)
    family.lifeline = -1
    follower.join(60)
    assert done == [(os.getpid(), signal.SIGTERM), 7.0, (os.getpid(), signal.SIGKILL)]


def test_a_process_is_the_worker_of_its_environment_and_only_once(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, value),) = family.inherited.environment().items()
    monkeypatch.setenv(name, value)
    assert Inheritance.of_this_process() == family.inherited
    family.worker._reports.close()
    with pytest.raises(LocalProtocolError, match="called again after it had returned"):
        Worker.here()


@pytest.mark.parametrize("value", ["", "no JSON", "[]", '{"number": 1}', "of the process that started this one"])
def test_a_process_that_a_worker_starts_or_whose_environment_says_nonsense_is_no_worker(
    family: Family, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value.startswith("of"):
        fields = json.loads(family.inherited.environment()["POLYBUS_WORKER"])
        fields["are"][0] = "0:0"  # another file under that number
        value = json.dumps(fields)
    monkeypatch.setenv("POLYBUS_WORKER", value)
    assert Worker.here() is None
