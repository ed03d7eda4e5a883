"""Hops of an exchange: what belongs together is found by ids, bodies, subjects or times, and what does not is left out."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polybus.analysis.report.journeys import BY_BODY, BY_ID, BY_NAME, BY_SUBJECT, BY_TIME, BY_TRACE, MOST, follow

IN, OUT, MS = 1, 0, 1_000_000


def _row(conn: str, direction: int, begin: int, latency: int | None, **given: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"capture_id": "b", "protocol": "ubre", "subject": "door.open", "correlation_id": conn}
    usual |= {"digest": "d", "traceparent": None}
    usual |= {"spell": 0, "again": 1}
    times = {"at_ns": begin * MS, "latency_ns": None if latency is None else latency * MS, "request_seq": begin}
    return {**usual, **times, "conn_id": conn, "direction": direction, **given}


CLIENT = _row("c-1", OUT, 0, 100, capture_id="c", correlation_id="7")
NEAR = _row("b-1", IN, 10, 80, correlation_id="7")
FAR = _row("b-2", OUT, 20, 60, protocol="uprotocol", subject="//v/door/1/rpc.open", correlation_id="x")
SERVER = _row("s-1", IN, 30, 40, capture_id="s", protocol="uprotocol", subject="//v/door/1/rpc.open", correlation_id="x")


def _ways(root: dict[str, Any], near: list[dict[str, Any]], *, all_near: bool = True) -> list[tuple[str, str]]:
    return [(hop.row["conn_id"], hop.known_by) for hop in follow(root, near, all_near=all_near)]


def _sure(root: dict[str, Any], near: list[dict[str, Any]], *, all_near: bool = True) -> list[str]:
    return [hop.row["conn_id"] for hop in follow(root, near, all_near=all_near) if hop.sure]


def test_the_way_over_a_bridge_is_the_same_from_wherever_it_is_asked_for() -> None:
    rows = [SERVER, FAR, NEAR, CLIENT]
    assert _ways(CLIENT, rows) == [("c-1", ""), ("b-1", BY_ID), ("b-2", BY_NAME), ("s-1", BY_ID)]
    for root in rows:
        assert _sure(root, rows) == ["c-1", "b-1", "b-2", "s-1"]


def test_all_places_that_have_recorded_a_request_are_on_its_way() -> None:
    views = [{**NEAR, "capture_id": name, "conn_id": name} for name in ("broker", "proxy", "server")]
    assert sorted(_sure(CLIENT, views)) == ["broker", "c-1", "proxy", "server"]
    for change in ({"again": 2}, {"spell": 1}, {"subject": "x"}, {"correlation_id": "8"}, {"protocol": "csb"}):
        assert _sure(CLIENT, [{**view, **change} for view in views]) == ["c-1"]


def test_without_the_same_body_the_same_subject_and_then_being_alone_may_be_it() -> None:
    other = {**FAR, "digest": "e", "subject": "far.close"}
    for near in ([{**other, "subject": "door.open"}], [other], [{**FAR, "subject": "far.close"}]):
        assert _sure(NEAR, near) == ["b-1"]
        assert len(_ways(NEAR, near)) == 2
    assert _ways(NEAR, [{**other, "subject": "door.open"}]) == [("b-1", ""), ("b-2", BY_SUBJECT)]
    assert _ways(NEAR, [other]) == [("b-1", ""), ("b-2", BY_TIME)]
    assert _ways(NEAR, [other], all_near=False) == [("b-1", "")]
    assert _ways(NEAR, [other, {**other, "conn_id": "b-3"}]) == [("b-1", "")]
    assert _ways(NEAR, [{**other, "digest": None, "subject": None}, {**other, "conn_id": "b-3"}]) == [("b-1", "")]


def _traced(trace: str, span: str) -> dict[str, Any]:
    return {"traceparent": f"00-{trace * 32}-{span * 16}-01"}


def test_a_trace_says_what_belongs_together_whatever_bodies_and_names_are() -> None:
    asked = {**NEAR, **_traced("a", "1")}
    onward = {**FAR, **_traced("a", "2"), "digest": "e", "subject": "other"}
    same_body = {**FAR, **_traced("b", "3"), "conn_id": "b-3"}
    untraced = {**FAR, "conn_id": "b-4", "at_ns": asked["at_ns"]}
    assert _ways(asked, [same_body, untraced, onward]) == [("b-1", ""), ("b-2", BY_TRACE)]
    other = {**NEAR, **_traced("b", "1"), "conn_id": "b-5", "correlation_id": "8"}
    assert _ways(onward, [asked, other]) == [("b-1", BY_TRACE), ("b-2", "")]
    # Of several in one trace the one with the same body.
    further = {**onward, "conn_id": "b-6", "again": 2, "digest": "d", "at_ns": onward["at_ns"] + 1}
    assert _ways(asked, [onward, further]) == [("b-1", ""), ("b-6", BY_TRACE)]


def test_a_request_of_another_trace_is_no_hop_and_what_is_no_trace_says_nothing() -> None:
    asked = {**NEAR, **_traced("a", "1")}
    assert _ways(asked, [{**FAR, **_traced("b", "2")}]) == [("b-1", "")]
    assert _ways({**NEAR, "traceparent": "00-x"}, [{**FAR, "traceparent": "00-x"}]) == [("b-1", ""), ("b-2", BY_NAME)]


def test_what_outlasts_a_request_or_was_recorded_elsewhere_is_none_of_its_hops() -> None:
    for other in (
        {**FAR, "latency_ns": 90 * MS},
        {**FAR, "at_ns": 5 * MS},
        {**FAR, "at_ns": 95 * MS},
        {**FAR, "capture_id": "somewhere else", "digest": "e", "subject": "door.close"},
        {**FAR, "capture_id": "somewhere else", "latency_ns": 90 * MS},
        {**FAR, "conn_id": NEAR["conn_id"]},
        {**FAR, "direction": IN},
    ):
        assert _ways(NEAR, [other]) == [("b-1", "")]


def test_a_request_that_was_never_answered_leads_to_the_one_that_was_not_answered_either() -> None:
    asked, onward = {**NEAR, "latency_ns": None}, {**FAR, "latency_ns": None}
    assert _ways(onward, [asked]) == [("b-1", BY_NAME), ("b-2", "")]
    assert _ways(NEAR, [onward]) == [("b-1", ""), ("b-2", BY_NAME)], "given up at its deadline"


def test_what_another_recording_has_may_be_it_where_one_alone_has_the_same_body_or_is_it_by_a_trace() -> None:
    onward = {**FAR, "capture_id": "the other bus"}
    assert _ways(CLIENT, [onward, NEAR, SERVER]) == [("c-1", ""), ("b-1", BY_ID), ("b-2", BY_BODY), ("s-1", BY_ID)]
    assert _sure(CLIENT, [onward, NEAR, SERVER]) == ["c-1", "b-1"], "what only may be it leads to what only may be it"
    traced = [{**row, **_traced("a", number)} for row, number in ((onward, "1"), (NEAR, "2"))]
    assert _sure(CLIENT, [*traced, SERVER]) == ["c-1", "b-1", "b-2", "s-1"]
    earlier = {**onward, "at_ns": NEAR["at_ns"] - 10_000}
    assert _ways(NEAR, [earlier]) == [("b-1", ""), ("b-2", BY_BODY)], "the clocks of two recorders differ by a little"
    assert _ways(NEAR, [onward, {**onward, "conn_id": "b-3"}]) == [("b-1", "")], "nobody knows which"
    other = {**onward, "digest": "e", "subject": "far%2Eopen"}
    assert _ways(NEAR, [other]) == [("b-1", "")], "words like get are the rule"


_ROWS = st.lists(
    st.builds(
        _row,
        st.sampled_from(["b-1", "b-2", "b-3"]),
        st.sampled_from([IN, OUT]),
        st.integers(0, 30),
        st.none() | st.integers(0, 30),
        capture_id=st.sampled_from("bc"),
        correlation_id=st.sampled_from(["1", "2", None]),
        digest=st.sampled_from(["d", "e", None]),
        again=st.integers(1, 3),
    ),
    min_size=1,
    max_size=30,
)


@given(_ROWS, st.booleans())
def test_no_way_is_longer_than_allowed_or_goes_twice_over_one_row(rows: list[dict[str, Any]], all_near: bool) -> None:
    hops = follow(rows[0], rows, all_near=all_near)
    assert 1 <= len(hops) <= MOST
    assert len({id(hop.row) for hop in hops}) == len(hops)
    assert [hop.known_by for hop in hops].count("") == 1
