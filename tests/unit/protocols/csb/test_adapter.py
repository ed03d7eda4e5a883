"""The options of the protocol."""

from polybus.protocols import Csb


def test_a_pool_is_so_many_connections_of_one_instance() -> None:
    connections = Csb(side="broker-server", pool=3, server="A").connections()
    assert len(connections) == 3
    assert len({adapter.instance for adapter in connections}) == 1
    assert all(adapter.instance and adapter.pool == 1 for adapter in connections)
    one = Csb(side="broker-server")
    assert one.connections() == (one,)


def test_an_encoding_goes_by_number_and_by_name() -> None:
    codec = Csb(actions={"user.login": 7}, encodings={"user.login": "urlencoded"}).codec()
    assert codec.format_for({}, 7) is codec.format_for({}, "user.login")
    assert codec.format_for({}, 7).content_type == "application/x-www-form-urlencoded"
