"""Host, Origin and sub-protocol: who may open a WebSocket here."""

from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from polybus.plugins.tools import cookies_of
from polybus.transports.upgrades import HandshakeRejected, OriginPolicy, UpgradeRequest


def door(**changes: Any) -> OriginPolicy:
    place = {name: changes.pop(name, usual) for name, usual in (("path", "/bus"), ("tls", False), ("loopback", True))}
    options: Any = SimpleNamespace(**{"subprotocol": "ubre.v1", "origins": (), "hosts": (), "private": False, **changes})
    return OriginPolicy(options=options, **place)


def status_of(function: Any, *args: Any) -> tuple[int, str]:
    try:
        function(*args)
    except HandshakeRejected as turned:
        return turned.status, turned.text
    return 101, ""


@pytest.mark.parametrize(
    ("host", "options", "status"),
    [
        *((host, {}, 101) for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000")),
        *((host, {}, 421) for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "192.0.2.1")),
        *((host, {"hosts": ("app.example",)}, 101) for host in ("app.example", "App.example:444")),
        *((f"app.example:{port}", {"hosts": ("app.example:444",)}, status) for port, status in ((444, 101), (445, 421))),
        ("app.example", {"origins": ("https://app.example",)}, 101),
        *(("evil.example", {"loopback": False}, 101), (None, {"loopback": False}, 400)),
        *((host, {}, 400) for host in ("", "a/b", "a:b", "user@localhost", "[::1")),
    ],
)
def test_a_loopback_server_answers_to_its_own_names_only(host: str | None, options: dict[str, Any], status: int) -> None:
    assert status_of(door(**options).check_host, host)[0] == status


LISTED = {"origins": ("https://app.example",)}


@pytest.mark.parametrize(
    ("origin", "host", "options", "status"),
    [
        *((origin, "localhost:8000", {}, 101) for origin in (None, "http://localhost:8000", "http://LocalHost:8000")),
        *((origin, "localhost", {}, 101) for origin in ("http://localhost", "http://localhost:80")),
        ("http://[::1]:8000", "[::1]:8000", {}, 101),
        *((origin, "app.example", {"tls": True}, 101) for origin in ("https://app.example", "https://app.example:443")),
        ("http://app.example", "app.example", {"tls": True}, 403),
        *((f"http://{host}", "localhost:8000", {}, 403) for host in ("localhost:8001", "evil.example", "localhost:bad")),
        *((origin, "localhost:8000", {}, 403) for origin in ("https://localhost:8000", "null", "")),
        *((f"http://{user}@localhost:8000", "localhost:8000", {}, 403) for user in ("evil", "evil:x")),
        *((f"http://localhost:8000{more}", "localhost:8000", {}, 403) for more in ("/evil", "?x", "#x")),
        *(("null", "localhost:8000", {"origins": ("null",)}, 101), ("https://app.example", "localhost:8000", LISTED, 101)),
        *((f"https://app.example{more}", "localhost:8000", LISTED, 403) for more in (".evil.example", ":8443")),
        ("http://app.example", "localhost:8000", LISTED, 403),
    ],
)
def test_a_browser_is_let_in_from_the_same_place_or_from_the_list(
    origin: str | None, host: str, options: dict[str, Any], status: int
) -> None:
    assert status_of(door(**options).check_origin, origin, host)[0] == status


@pytest.mark.parametrize(
    ("offers", "chosen", "token"),
    [
        *(([], None, None), (["ubre.v1"], "ubre.v1", None), (["other", "ubre.v1"], "ubre.v1", None)),
        *((["ubre.v1", "polybus.token.abc"], "ubre.v1", "abc"), (["polybus.token.abc"], "polybus.token.abc", "abc")),
    ],
)
def test_a_sub_protocol_is_chosen(offers: list[str], chosen: str | None, token: str | None) -> None:
    assert door().choose(offers) == (chosen, token)


@pytest.mark.parametrize("offers", [["other"], ["other", "polybus.token.abc"]])
def test_nothing_in_common_is_refused_without_the_token(offers: list[str]) -> None:
    status, text = status_of(door().choose, offers)
    assert status == HTTPStatus.BAD_REQUEST
    assert "'other'" in text
    assert "ubre.v1" in text
    assert "abc" not in text


@pytest.mark.parametrize(
    ("served", "asked", "status"),
    [("/bus", "/bus", 101), ("", "/", 101), ("/a%20b", "/a b", 101), ("/bus", "/", 404), ("/bus", "/bus/", 404)],
)
def test_only_the_path_of_the_listener_is_served(served: str, asked: str, status: int) -> None:
    assert status_of(door(path=served).check_path, asked)[0] == status


def test_a_close_tells_any_words_cut_to_what_fits_it() -> None:
    offers = ["ubre.v1", "polybus.closes"]
    for text, said in (("no \ud800", "no ?"), ("\u00e9" * 200, "\u00e9" * 61)):
        assert HandshakeRejected(401, text).close(offers) == (4401, said)


def test_query_and_cookies_are_read_tolerantly() -> None:
    assert UpgradeRequest(path="/", query="a=1&b=&a=2", headers={}).fields == {"a": "2", "b": ""}
    many = UpgradeRequest(path="/", query="a=1&" * 1000, headers={})
    assert status_of(lambda: many.fields)[0] == HTTPStatus.BAD_REQUEST
    assert cookies_of("session=abc; theme=dark") == {"session": "abc", "theme": "dark"}
    assert cookies_of("") == {}
    assert cookies_of("a,b=c; \x00") == {}


OF_PROXIES = """
x-real-ip cf-connecting-ip true-client-ip x-client-ip x-cluster-client-ip x-azure-clientip
fly-client-ip x-original-forwarded-for x-envoy-external-address x-azure-socketip x-nf-client-connection-ip x-appengine-user-ip
""".split()


@pytest.mark.parametrize(
    ("client", "headers", "seen"),
    [
        *((client, {}, "") for client in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "testclient")),
        ("", {}, ""),  # a Unix socket
        ("127.0.0.1", {"host": ["app.example"], "x-forwarded-proto": ["https"], "x-forwarded-host": ["app.example"]}, ""),
        *(
            ("127.0.0.1", {"x-forwarded-for": [hops]}, "")
            for hops in ("127.0.0.1", "127.0.0.1:4000, ::1, [::1]:80, ::ffff:127.0.0.1")
        ),
        ("127.0.0.1", {"forwarded": ['for=127.0.0.1;proto=https, For="[::1]:80"']}, ""),
        ("127.0.0.1", {"x-real-ip": ["::1"]}, ""),
        *((client, {}, f"'{client}'") for client in ("203.0.113.7", "2001:db8::1", "unknown")),
        ("10.0.0.1", {"x-forwarded-for": ["127.0.0.1"]}, "'10.0.0.1'"),
        *(
            ("127.0.0.1", {"x-forwarded-for": hops}, "'203.0.113.7' (x-forwarded-for)")
            for hops in (["203.0.113.7"], ["127.0.0.1, 203.0.113.7:99"], ["127.0.0.1", "203.0.113.7"])
        ),
        *(("127.0.0.1", {"x-forwarded-for": [hop]}, f"'{hop}' (x-forwarded-for)") for hop in ("", "unknown")),
        ("127.0.0.1", {"x-forwarded-for": ["127.0.0.1.evil.example"]}, "'127.0.0.1.evil.example'"),
        ("127.0.0.1", {"x-forwarded-for": ["\x00" * 999]}, "(x-forwarded-for)"),
        *(
            ("127.0.0.1", {"forwarded": [said]}, seen)
            for said, seen in (
                ('for="[2001:db8::1]:80"', "'2001:db8::1' (forwarded)"),
                ("for=127.0.0.1, for=198.51.100.1;by=127.0.0.1", "'198.51.100.1' (forwarded)"),
                ("proto=https;by=127.0.0.1", "(forwarded)"),
                ("for=_hidden", "'_hidden' (forwarded)"),
                ('host="a;for=127.0.0.1";for=198.51.100.1', "'198.51.100.1' (forwarded)"),
                ('host="a, for=127.0.0.1";for=198.51.100.1', "(forwarded)"),
            )
        ),
        *(("127.0.0.1", {name: ["198.51.100.1"]}, f"({name})") for name in OF_PROXIES),
    ],
)
def test_a_bus_that_lets_everybody_in_takes_clients_of_its_own_machine(
    client: str, headers: dict[str, list[str]], seen: str
) -> None:
    upgrade = UpgradeRequest(path="/bus", query="", headers={"host": ["localhost"], **headers}, client=client)
    status, text = status_of(door(private=True, hosts=("app.example",)).check, upgrade)
    assert status == (403 if seen else 101)
    assert seen in text
    assert not seen or ("Bus(authenticate=...)" in text and "insecure=True" in text and len(text) < 800)
    assert status_of(door(hosts=("app.example",)).check, upgrade)[0] == 101
