"""Events made by hand: each story is a recording of its own with what should come of it."""

from typing import Any

import attrs
import pyarrow as pa

from polybus.capture.schema import EVENTS

MS = 1_000_000
START = 1_790_000_000_000_000_000


@attrs.define
class Story:
    """A recording. Times are milliseconds since it began."""

    name: str
    events: list[dict[str, Any]] = attrs.Factory(list)

    def add(self, kind: str, at: float, **columns: Any) -> None:
        seq = len(self.events)
        row: dict[str, Any] = dict.fromkeys(EVENTS.names)
        row |= {
            "id": f"{self.name}/{seq}/0",
            "source": "somebody",
            "specversion": "1.0",
            "kind": kind,
            "conn_id": f"{self.name}-1",
            "direction": 0,
            "peer": "tcp:127.0.0.1:1",
            "protocol": "ubre",
            "transport": "tcp",
            "capture_id": self.name,
            "seq": seq,
            "sub": 0,
            "nbytes": 10,
            "time_ns": START + round(at * MS),
            "mono_ns": round(at * MS),
            "client": "",
            "tunnel": [],
            "flags": 0,
        }
        row |= columns
        row["type"] = f"{row['protocol']}.{kind}"
        row["time"] = row["time_ns"] // 1000
        self.events.append(row)

    def asks(self, at: float, id: str = "1", *, data: bytes = b"?", subject: str = "user.get", **columns: Any) -> None:
        self.add("request", at, correlation_id=id, subject=subject, data=data, **columns)

    def answers(self, at: float, id: str = "1", *, direction: int = 1, code: int = 0, **columns: Any) -> None:
        self.add("response", at, correlation_id=id, direction=direction, code=code, **columns)

    def opens(self, at: float, id: str = "1", **columns: Any) -> None:
        self.add("stream", at, correlation_id=id, subject="user.watch", **columns)

    def item(self, at: float, id: str = "1", *, direction: int = 1) -> None:
        self.add("item", at, correlation_id=id, direction=direction)

    def stops(self, at: float, id: str = "1", *, direction: int = 1, **columns: Any) -> None:
        self.add("end", at, correlation_id=id, direction=direction, **columns)

    def cancels(self, at: float, id: str = "1", **columns: Any) -> None:
        self.add("cancel", at, correlation_id=id, **columns)

    def closes(self, at: float, **columns: Any) -> None:
        self.add("close", at, code_name="1006", **columns)

    def ends(self, at: float) -> None:
        self.add("heartbeat", at)


def table(*stories: Story) -> pa.Table:
    return pa.Table.from_pylist([row for story in stories for row in story.events], schema=EVENTS)
