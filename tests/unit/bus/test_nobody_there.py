"""Advice for a first connect to an address where nobody is."""

from __future__ import annotations

import pytest

from polybus import ConnectFailed
from polybus._bus.nobody_there import advice_for

NOBODY = "connection refused: nobody listens there"


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("ubre+ws://shop.example/bus", " (on port 80, since the URL names none)"),
        ("ubre+wss://[::1]/bus", " (on port 443, since the URL names none)"),
        ("ws://ann:secret@shop.example/bus", " (on port 80, since the URL names none)"),
        ("ubre+ws://shop.example:8000/bus", ""),
        ("ubre+tcp://shop.example:9000", ""),
    ],
)
def test_the_port_is_told_where_the_url_leaves_it_out(url: str, where: str) -> None:
    assert advice_for(ConnectFailed(url, NOBODY)) == f"{where}; is the server running? connect(..., wait=30) goes on trying"


def test_a_server_that_is_there_and_refuses_is_not_waited_for() -> None:
    assert advice_for(ConnectFailed("ubre+ws://shop.example/bus", "the server answered 404 Not Found")) is None
