"""URLs of Zenoh and the configuration that they stand for."""

from pathlib import Path
from typing import Any

import pytest

from polybus.plugins.registry import resolve_url
from polybus.transports.zenoh.transport import listening_address, zenoh_address

CLIENT: dict[str, Any] = {
    "mode": "client",
    "listen/endpoints": [],
    "listen/timeout_ms": 0,
    "listen/exit_on_failure": True,
    "connect/endpoints": ["tcp/127.0.0.1:7447"],
    "connect/timeout_ms": 0,
    "connect/exit_on_failure": True,
    "scouting/multicast/enabled": False,
    "scouting/gossip/enabled": False,
    "scouting/delay": 0,
    "transport/unicast/open_timeout": 10_000,
    "transport/shared_memory/enabled": False,
}
SCOUTING = {"scouting/multicast/enabled": True, "scouting/gossip/enabled": True, "scouting/delay": None}
ROUTER = CLIENT | {
    "mode": "router",
    "listen/endpoints": ["tcp/127.0.0.1:7447"],
    "connect/endpoints": [],
    "connect/timeout_ms": -1,
    "connect/exit_on_failure": False,
}


@pytest.mark.parametrize(
    ("query", "client", "router"),
    [
        ("", {}, {}),
        ("mode=peer", {"mode": "peer"}, {"mode": "peer"}),
        ("link=ws", {"connect/endpoints": ["ws/127.0.0.1:7447"]}, {"listen/endpoints": ["ws/127.0.0.1:7447"]}),
        (
            "connect=tcp/127.0.0.1:1,udp/[::1]:2",
            {"connect/endpoints": ["tcp/127.0.0.1:7447", "tcp/127.0.0.1:1", "udp/[::1]:2"]},
            {"connect/endpoints": ["tcp/127.0.0.1:1", "udp/[::1]:2"]},
        ),
        (
            "listen=tcp/127.0.0.1:1",
            {"listen/endpoints": ["tcp/127.0.0.1:1"]},
            {"listen/endpoints": ["tcp/127.0.0.1:7447", "tcp/127.0.0.1:1"]},
        ),
        ("scouting=multicast", SCOUTING, SCOUTING),
        ("scouting=off", {}, {}),
    ],
)
def test_an_option_is_a_setting_of_zenoh(query: str, client: dict[str, Any], router: dict[str, Any]) -> None:
    address = zenoh_address(f"zenoh://127.0.0.1/?{query}")
    for serves, wanted in ((False, CLIENT | client), (True, ROUTER | router)):
        settings = address.settings(serves=serves, patience=10.0)
        assert settings == {path: value for path, value in wanted.items() if value is not None}


def test_files_of_tls_are_settings_of_zenoh(tmp_path: Path) -> None:
    names = {name: str(tmp_path / name) for name in ("ca", "cert", "key")}
    for path in names.values():
        Path(path).write_text("")
    url = "zenoh://127.0.0.1:1?link=tls&" + "&".join(f"{name}={path}" for name, path in names.items())
    for serves, side in ((True, "listen"), (False, "connect")):
        settings = zenoh_address(url).settings(serves=serves, patience=1.0)
        assert {name.rpartition("/")[2]: value for name, value in settings.items() if "tls/" in name} == {
            "root_ca_certificate": names["ca"],
            f"{side}_certificate": names["cert"],
            f"{side}_private_key": names["key"],
            "enable_mtls": True,
        }


@pytest.mark.parametrize(
    ("url", "url_of_others"),
    [
        ("zenoh://127.0.0.1:7000/?mode=peer&connect=tcp/127.0.0.1:1", "zenoh://127.0.0.1:7000"),
        ("zenoh://[::1]:7000?link=udp", "zenoh://[::1]:7000/?link=udp"),
    ],
)
def test_whoever_connects_needs_less_than_this_side(url: str, url_of_others: str) -> None:
    assert zenoh_address(url).url() == url_of_others


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("zenoh://127.0.0.1:1", True),
        ("zenoh://[::1]:1?listen=tcp/127.0.0.1:2&connect=tcp/localhost:3", True),
        ("zenoh://0.0.0.0:1", False),
        ("zenoh://127.0.0.1:1?listen=tcp/0.0.0.0:2", False),
        ("zenoh://127.0.0.1:1?connect=tcp/192.0.2.1:2", False),
        ("zenoh://127.0.0.1:1?scouting=multicast", False),
        ("zenoh://?scouting=multicast", False),
    ],
)
def test_what_joins_a_fabric_beyond_this_machine_is_not_private(url: str, private: bool) -> None:
    assert zenoh_address(url).is_private is private


def test_a_file_with_a_configuration_may_join_anything(tmp_path: Path) -> None:
    (tmp_path / "zenoh.json5").write_text("{}")
    assert not zenoh_address(f"zenoh://127.0.0.1:1?config={tmp_path}/zenoh.json5").is_private


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("zenoh://", "the host is missing"),
        ("zenoh:///?mode=peer", "the host is missing"),
        ("zenoh://127.0.0.1:1/path", "no path"),
        ("zenoh://user@127.0.0.1:1", "no user"),
        ("zenoh://127.0.0.1:1?modes=peer", "unknown option modes"),
        ("zenoh://127.0.0.1:1?mode=server", "mode='server' must be one of client, peer, router"),
        ("zenoh://127.0.0.1:1?link=http", "link='http' must be one of"),
        ("zenoh://127.0.0.1:1?scouting=gossip", "scouting='gossip' must be one of"),
        ("zenoh://127.0.0.1:1?listen=127.0.0.1:2", "listen=127.0.0.1:2 is not a locator"),
        ("zenoh://127.0.0.1:1?connect=tcp/127.0.0.1", "connect=tcp/127.0.0.1 is not a locator"),
        ("zenoh://127.0.0.1:1?connect=tcp/127.0.0.1:port", "is not a locator"),
        ("zenoh://127.0.0.1:1?connect=http/127.0.0.1:2", "connect=http/127.0.0.1:2 is not a locator"),
        ("zenoh://127.0.0.1:1?connect=tcp/[", r"connect=tcp/\[ is not a locator"),
        ("zenoh://127.0.0.1:1?ca=/nothing/here", "ca=/nothing/here is not a file"),
        ("zenoh://127.0.0.1:1?link=tls", "link=tls needs ca="),
        (f"zenoh://127.0.0.1:1?cert={__file__}", "cert= and key= belong together"),
    ],
)
def test_what_means_nothing_is_refused_with_a_reason(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        zenoh_address(url)


def test_a_client_of_a_router_serves_nowhere() -> None:
    with pytest.raises(ValueError, match=r"mode=client does not listen: .* mode=peer"):
        listening_address("zenoh://127.0.0.1:1?mode=client")
    assert listening_address("zenoh://127.0.0.1:1?mode=peer").mode == "peer"


def test_an_option_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="mode occurs more than once"):
        resolve_url("up+zenoh://127.0.0.1:1?mode=peer&mode=client")
    resolve_url("up+ws://127.0.0.1:1?tag=a&tag=b")  # that is for the server
