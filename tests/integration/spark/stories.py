"""Events made by hand: each story is a separate recording. Times are milliseconds since its start."""

from typing import Any

import pyarrow as pa

from polybus.capture.schema import EVENTS

MS = 1_000_000
START = 1_790_000_000_000_000_000
Event = dict[str, Any]


def event(kind: str, at: float, **columns: Any) -> Event:
    return {"kind": kind, "mono_ns": round(at * MS), **columns}


def asks(at: float, id: str = "1", **columns: Any) -> Event:
    return event("request", at, correlation_id=id, **{"data": b"?", "subject": "user.get", **columns})


def answers(at: float, id: str = "1", **columns: Any) -> Event:
    return event("response", at, correlation_id=id, **{"direction": 1, "code": 0, **columns})


def opens(at: float, id: str = "1") -> Event:
    return event("stream", at, correlation_id=id, subject="user.watch")


def item(at: float, id: str = "1", direction: int = 1) -> Event:
    return event("item", at, correlation_id=id, direction=direction)


def stops(at: float, id: str = "1", direction: int = 1, **columns: Any) -> Event:
    return event("end", at, correlation_id=id, direction=direction, **columns)


def cancels(at: float, id: str = "1") -> Event:
    return event("cancel", at, correlation_id=id)


def closes(at: float, **columns: Any) -> Event:
    return event("close", at, code_name="1006", **columns)


def ends(at: float) -> Event:
    return event("heartbeat", at)


def recorded(name: str, *events: Event) -> list[Event]:
    """Whole rows: those of a recording that has a name."""
    usual = {
        **dict.fromkeys(EVENTS.names),
        **{"source": "somebody", "specversion": "1.0", "conn_id": f"{name}-1", "direction": 0, "peer": "tcp:127.0.0.1:1"},
        **{"protocol": "ubre", "transport": "tcp", "capture_id": name, "sub": 0, "nbytes": 10, "client": "", "flags": 0},
    }
    rows = []
    for seq, columns in enumerate(events):
        row = usual | {"id": f"{name}/{seq}/0", "seq": seq, "tunnel": [], "time_ns": START + columns["mono_ns"]} | columns
        rows.append(row | {"type": f"{row['protocol']}.{row['kind']}", "time": row["time_ns"] // 1000})
    return rows


def table(*recordings: list[Event]) -> pa.Table:
    return pa.Table.from_pylist([row for rows in recordings for row in rows], schema=EVENTS)
