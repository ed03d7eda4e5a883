"""What a real NATS server does to a connection: who is let in, what is allowed, TLS, and ends of every kind."""

import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trustme

from polybus import Backoff, Bus, Cluster, ConnectFailed, Forbidden, Limits, NoHandler, Unauthorized, connect
from polybus.events import DeadLettered, LinkDown, LinkRetrying, LinkUp
from polybus.protocols import Nats
from tests.refusal import refused
from tests.support import next_event

from .nats_keys import Key, Operator
from .nats_servers import VERSIONS, NatsServer, certified, nats_server

BACKOFF = Backoff(initial=0.001, maximum=0.02)


def at(server: NatsServer, user: str, query: str = "") -> str:
    return f"nats+tcp://{user}127.0.0.1:{server.port}{query}"


async def works(url: str, **more: Any) -> None:
    bus = Bus()
    bus.handle("echo")(_echo)
    async with connect(url, bus=bus, **more), connect(url, **more) as client:
        assert await client.request("echo", 7) == 7


async def _echo(body: Any) -> Any:
    return body


# -- who is let in -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_user_and_password_in_the_url(version: str) -> None:
    password = "p@ss/word"
    with nats_server(version, f'authorization {{ user: "ann", password: "{password}" }}') as server:
        await works(at(server, f"ann:{quote(password, safe='')}@"))
        await works(server.url, protocol=Nats(user="ann", password=password))
        for wrong in ("", "ann:wrong@", "a-token@"):
            with pytest.raises(Unauthorized, match="Authorization Violation") as caught:
                await works(at(server, wrong))
            assert "wrong" not in str(caught.value)


async def test_a_token_in_the_url() -> None:
    with nats_server("wheel", 'authorization { token: "s3cret" }') as server:
        await works(at(server, "s3cret@"))
        with pytest.raises(Unauthorized):
            await works(server.url)


async def test_a_key_signs_the_nonce_of_the_server(tmp_path: Path) -> None:
    key, other = Key.of("U", 7), Key.of("U", 8)
    (tmp_path / "user.nk").write_text(key.seed + "\n")
    with nats_server("wheel", f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}") as server:
        await works(server.url, protocol=Nats(nkey=key.seed))
        await works(f"{server.url}?nkey={quote(str(tmp_path / 'user.nk'))}")
        with pytest.raises(Unauthorized):
            await works(server.url, protocol=Nats(nkey=other.seed))


async def test_a_credentials_file_has_the_jwt_of_an_operator(tmp_path: Path) -> None:
    operator, path = Operator(), tmp_path / "ann.creds"
    path.write_text(operator.creds)
    with nats_server("wheel", operator.config) as server:
        await works(f"{server.url}?creds={quote(str(path))}")
        with pytest.raises(Unauthorized):
            await works(server.url)


def allowing(key: Key) -> str:
    return f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}"


async def test_keys_are_read_for_each_connection_so_they_can_be_replaced(tmp_path: Path) -> None:
    before, after, path = Key.of("U", 7), Key.of("U", 8), tmp_path / "user.nk"
    path.write_text(before.seed)
    with nats_server("wheel", allowing(before)) as server:
        async with connect(server.url, protocol=Nats(nkey=str(path)), backoff=BACKOFF) as bus:
            events = bus.events()
            server.kill()
            await next_event(events, LinkDown)
            path.unlink()
            retrying = await next_event(events, LinkRetrying)
            while "No such file" not in retrying.reason:
                retrying = await next_event(events, LinkRetrying)
            assert str(tmp_path) not in retrying.reason
            server.config = allowing(after)
            server.start()
            path.write_text(after.seed)
            await next_event(events, LinkUp)
            with pytest.raises(NoHandler):
                await bus.request("echo")


async def test_credentials_that_expire_are_replaced_by_those_in_the_file(tmp_path: Path) -> None:
    operator, path = Operator(), tmp_path / "ann.creds"
    with nats_server("wheel", operator.config) as server:
        path.write_text(operator.creds_until(int(time.time()) + 5))
        async with connect(server.url, protocol=Nats(creds=str(path)), backoff=BACKOFF) as bus:
            events = bus.events()
            down = await next_event(events, LinkDown)  # the server ends it when they expire
            assert "Expired" in down.reason
            retrying = await next_event(events, LinkRetrying)
            while "Authorization Violation" not in retrying.reason and "xpired" not in retrying.reason:
                retrying = await next_event(events, LinkRetrying)
            path.write_text(operator.creds)
            await next_event(events, LinkUp)
            with pytest.raises(NoHandler):
                await bus.request("echo")


async def test_a_key_for_a_server_without_keys_says_so() -> None:
    with nats_server("wheel") as server:
        with pytest.raises(Forbidden, match="sent no nonce"):
            await works(server.url, protocol=Nats(nkey=Key.of("U", 7).seed))


# -- what is allowed ---------------------------------------------------------------------------------------------------------

PERMISSIONS = """authorization { users: [
    { user: ann, password: a, permissions: {
        publish: { deny: ["secret.>"] }, subscribe: { deny: ["secret.>"] } } }
    { user: mute, password: a, permissions: { publish: ">", subscribe: { deny: ["_INBOX.>"] } } }
    { user: own, password: a, permissions: { publish: ">", subscribe: { allow: ["_own.>"] } } }
    { user: reader, password: a, permissions: { publish: { deny: ["shop.>"] } } }
] }"""


async def test_what_the_server_does_not_allow_is_forbidden_and_the_link_lives() -> None:
    with nats_server("wheel", PERMISSIONS) as server:
        async with connect(at(server, "ann:a@")) as bus:
            events = bus.events()
            with pytest.raises(Forbidden, match="Permissions Violation for Publish"):
                await bus.request("secret.plan", timeout=1000)
            for _ in range(2):
                await refused(bus.subscribe("secret.plan"), Forbidden, match="subscribe")
            async with bus.subscribe("news.*") as news:
                await bus.publish("secret.news", 1)
                letter = await next_event(events, DeadLettered)
                while letter.subject != "secret.news":
                    letter = await next_event(events, DeadLettered)
                assert "Permissions Violation for Publish" in letter.reason
                async with connect(at(server, "ann:a@")) as other:
                    await other.publish("news.today", 1)
                assert (await anext(news)).body == 1
            assert bus.stats().links == 1


async def test_a_user_that_may_not_hear_answers_is_told_so() -> None:
    with nats_server("wheel", PERMISSIONS) as server:
        async with connect(at(server, "mute:a@")) as bus:
            with pytest.raises(Forbidden, match=r"no answer can come.*_INBOX\.>"):
                await bus.request("echo", timeout=1000)
            await bus.publish("news", 1)
        async with connect(at(server, "own:a@", "?inbox=_own")) as bus:
            with pytest.raises(NoHandler):
                await bus.request("echo")


@pytest.mark.parametrize(("user", "what"), [("own", "Subscription"), ("reader", "Publish")])
async def test_a_node_whose_user_may_not_use_the_subjects_of_the_cluster_is_not_entered(user: str, what: str) -> None:
    with nats_server("wheel", PERMISSIONS) as server:
        remedy = rf"{what} to \"shop\..*; allow this user to publish and to subscribe to shop\.>"
        await refused(Bus(cluster=Cluster(at(server, f"{user}:a@"), name="shop")), Forbidden, match=remedy)


async def test_a_handler_that_the_server_does_not_allow_is_told_as_a_dead_letter() -> None:
    bus = Bus()
    bus.handle("secret.echo")(_echo)
    with nats_server("wheel", PERMISSIONS) as server:
        async with bus:
            events = bus.events()
            async with connect(at(server, "ann:a@"), bus=bus):
                letter = await next_event(events, DeadLettered)
                assert letter.subject == "secret.echo"
                assert "Subscription" in letter.reason


# -- TLS ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority_and_certificate(tmp_path: Path) -> tuple[trustme.CA, str]:
    return certified(tmp_path, "localhost", "127.0.0.1")


@pytest.fixture
def certificate(authority_and_certificate: tuple[trustme.CA, str]) -> str:
    return authority_and_certificate[1]


@pytest.fixture
def trusting(authority_and_certificate: tuple[trustme.CA, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority_and_certificate[0].configure_trust(context)
    return context


async def test_tls_begins_after_info(certificate: str, trusting: ssl.SSLContext) -> None:
    with nats_server("wheel", f"tls {{ {certificate} }}") as server:
        url = f"nats+tls://localhost:{server.port}"
        await works(url, tls=trusting)
        with pytest.raises(ConnectFailed, match="not trusted"):
            await works(url)
        with pytest.raises(ConnectFailed, match=r"requires TLS: connect to nats\+tls://"):
            await works(at(server, "ann:secret@"))
    with nats_server("wheel") as server:
        with pytest.raises(ConnectFailed, match=r"no TLS: connect to nats\+tcp://"):
            await works(f"nats+tls://localhost:{server.port}", tls=trusting)


async def test_a_certificate_of_the_client_is_a_user(
    authority_and_certificate: tuple[trustme.CA, str], trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    authority, certificate = authority_and_certificate
    config = f'tls {{ {certificate}, ca_file: "{tmp_path / "ca.pem"}", verify: true }}'
    with nats_server("wheel", config) as server:
        with pytest.raises(ConnectFailed):
            await works(f"nats+tls://localhost:{server.port}", tls=trusting)
        authority.issue_cert("ann@example.org").configure_cert(trusting)
        await works(f"nats+tls://localhost:{server.port}", tls=trusting)


async def test_tls_comes_first_where_the_server_says_so(certificate: str, trusting: ssl.SSLContext) -> None:
    with nats_server("wheel", f"tls {{ {certificate}, handshake_first: true }}") as server:
        await works(f"nats+tls://localhost:{server.port}?tls_first=true", tls=trusting)
        with pytest.raises(ConnectFailed):
            impatient = Bus(limits=Limits(handshake_timeout=0.3))
            async with connect(f"nats+tls://localhost:{server.port}", tls=trusting, bus=impatient):
                raise AssertionError("connected")


async def test_websockets_with_tls(certificate: str, trusting: ssl.SSLContext) -> None:
    config = f'websocket {{ listen: "127.0.0.1:-1", tls {{ {certificate} }} }}\nauthorization {{ token: "s3cret" }}'
    with nats_server("wheel", config) as server:
        await works(f"nats+wss://s3cret@localhost:{server.websocket_port}/", tls=trusting)
        with pytest.raises(Unauthorized):
            await works(f"nats+wss://localhost:{server.websocket_port}/", tls=trusting)


# -- ends --------------------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_full_refuses_and_may_be_tried_again() -> None:
    with nats_server("wheel", "max_connections: 1") as server:
        async with connect(server.url):
            with pytest.raises(ConnectFailed, match="maximum connections exceeded"):
                await works(server.url)
