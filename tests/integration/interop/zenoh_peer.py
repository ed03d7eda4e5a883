"""A session of Zenoh's own library in the tests' process: puts and receives raw samples."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Condition
from typing import Any

import zenoh

from polybus.plugins import Sample
from tests.support import BOUND


def config_of(**settings: Any) -> zenoh.Config:
    """A configuration without scouting; ``connect_endpoints`` stands for ``connect/endpoints``."""
    config = zenoh.Config()
    quiet = {"scouting_multicast_enabled": False, "scouting_gossip_enabled": False}
    for name, value in (quiet | settings).items():
        path = name.replace("_", "/") if not name.startswith("transport") else name
        config.insert_json5(path, json.dumps(value))
    return config


class ZenohPeer:
    def __init__(self, session: Any, expression: str) -> None:
        self._session = session
        self._heard: list[Sample] = []
        self._changed = Condition()
        self._subscribers = list[Any]()
        self.hear(expression)

    def hear(self, expression: str) -> None:
        handler = zenoh.handlers.Callback(self._take, indirect=False)
        self._subscribers.append(self._session.declare_subscriber(expression, handler))

    def _take(self, sample: Any) -> None:
        attachment = None if sample.attachment is None else bytes(sample.attachment)
        with self._changed:
            self._heard.append(Sample(str(sample.key_expr), attachment, bytes(sample.payload), 7 - int(sample.priority)))
            self._changed.notify_all()

    def heard(self, count: int) -> list[Sample]:
        """What was heard, when it is so much."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._heard) >= count, BOUND), self._heard
            return [*self._heard]

    def found(self) -> None:
        """Return when what was subscribed to is known to the router: it has answered what was asked behind it."""
        assert list(self._session.liveliness().get("none", timeout=BOUND)) == []

    def put(self, sample: Sample, **options: Any) -> None:
        levels = zenoh.Priority
        priority = (
            levels.BACKGROUND, levels.DATA_LOW, levels.DATA, levels.DATA_HIGH, levels.INTERACTIVE_LOW,
            levels.INTERACTIVE_HIGH, levels.REAL_TIME,
        )[sample.level]  # fmt: skip
        self._session.put(
            sample.key,
            sample.payload,
            attachment=sample.attachment,
            priority=priority,
            congestion_control=zenoh.CongestionControl.BLOCK,
            **options,
        )

    def delete(self, key: str, **options: Any) -> None:
        self._session.delete(key, **options)


def zenoh_router(port: int, expression: str) -> AbstractContextManager[ZenohPeer]:
    """A router that has one subscriber when it is entered, but has accepted nodes before."""
    return zenoh_peer("", expression, mode="router", listen_endpoints=[f"tcp/127.0.0.1:{port}"], connect_endpoints=[])


@contextmanager
def zenoh_peer(url: str, expression: str = "none", **settings: Any) -> Iterator[ZenohPeer]:
    address = url.partition("://")[2].partition("/")[0].partition("?")[0]
    session: Any = zenoh.open(config_of(**{"mode": "client", "connect_endpoints": [f"tcp/{address}"]} | settings))
    try:
        yield ZenohPeer(session, expression)
    finally:
        session.close()
