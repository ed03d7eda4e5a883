"""How many connections a gate lets in: exactly as many as its limits say."""

import pytest

from polybus import Limits
from polybus._core.runtime.access import Admissions


@pytest.mark.parametrize(
    ("limits", "let_in", "open_ones", "address", "says"),
    [
        (Limits(handshakes=2), 2, 0, "10.0.0.{}:1", r"2 handshakes are under way \(Limits.handshakes\)"),
        (Limits(peers=2), 2, 2, "10.0.0.{}:1", r"2 connections are open \(Limits.peers\)"),
        (Limits(peers_per_address=2), 2, 0, "10.0.0.1:{}", r"2 connections from 10.0.0.1 \(Limits.peers_per_address\)"),
    ],
    ids=["handshakes", "peers", "peers of one address"],
)
def test_a_limit_lets_in_as_many_as_it_says(limits: Limits, let_in: int, open_ones: int, address: str, says: str) -> None:
    admissions = Admissions(limits)
    for number in range(let_in):
        assert admissions.knock(address.format(number), max(0, open_ones - 1)) is None
    refused = admissions.knock(address.format(9), open_ones)
    assert refused is not None
    with pytest.raises(type(refused), match=says):
        raise refused
    admissions.left(address.format(0))
    assert admissions.knock(address.format(9), max(0, open_ones - 1)) is None
