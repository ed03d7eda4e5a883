"""What a real NATS server does to a connection: who is let in, what is allowed, TLS, and ends of every kind."""

from __future__ import annotations

import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
import trustme

from polybus import Backoff, Bus, ConnectFailed, Disconnected, Forbidden, Limits, NoHandler, Unauthorized, connect
from polybus.events import BusEvent, DeadLettered, LinkDown, LinkRetrying, LinkUp
from polybus.protocols import Nats
from tests.support import bounded, eventually, free_port

from .nats_keys import Key, Operator
from .nats_py_peer import nats_py
from .nats_servers import VERSIONS, NatsServer, nats_server

pytestmark = pytest.mark.anyio

BACKOFF = Backoff(initial=0.001, maximum=0.02)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def at(server: NatsServer, user: str, query: str = "") -> str:
    return f"nats+tcp://{user}127.0.0.1:{server.port}{query}"


async def works(url: str, **more: Any) -> None:
    """Ask through a connection."""
    bus = Bus()
    bus.handle("echo")(_echo)
    async with connect(url, bus=bus, **more), connect(url, **more) as client:
        assert await client.request("echo", 7) == 7


async def _echo(body: Any) -> Any:
    return body


async def event(events: Any, kind: type[BusEvent]) -> Any:
    async for one in events:
        if isinstance(one, kind):
            return one
    raise AssertionError("no more events")


# -- who is let in -----------------------------------------------------------------------------------------------------------


@bounded
async def test_user_and_password_in_the_url(version: str) -> None:
    password = "p@ss/word"
    with nats_server(version, f'authorization {{ user: "ann", password: "{password}" }}') as server:
        await works(at(server, f"ann:{quote(password, safe='')}@"))
        await works(server.url, protocol=Nats(user="ann", password=password))
        for wrong in ("", "ann:wrong@", "a-token@"):
            with pytest.raises(Unauthorized, match="Authorization Violation") as caught:
                await works(at(server, wrong))
            assert "wrong" not in str(caught.value)


@bounded
async def test_a_token_in_the_url(version: str) -> None:
    with nats_server(version, 'authorization { token: "s3cret" }') as server:
        await works(at(server, "s3cret@"))
        with pytest.raises(Unauthorized):
            await works(server.url)


@bounded
async def test_a_key_signs_the_nonce_of_the_server(version: str, tmp_path: Path) -> None:
    key, other = Key.of("U", 7), Key.of("U", 8)
    (tmp_path / "user.nk").write_text(key.seed + "\n")
    with nats_server(version, f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}") as server:
        await works(server.url, protocol=Nats(nkey=key.seed))
        await works(f"{server.url}?nkey={quote(str(tmp_path / 'user.nk'))}")
        with pytest.raises(Unauthorized):
            await works(server.url, protocol=Nats(nkey=other.seed))


@bounded
async def test_a_credentials_file_has_the_jwt_of_an_operator(version: str, tmp_path: Path) -> None:
    operator, path = Operator(), tmp_path / "ann.creds"
    path.write_text(operator.creds)
    with nats_server(version, operator.config) as server:
        await works(f"{server.url}?creds={quote(str(path))}")
        with pytest.raises(Unauthorized):
            await works(server.url)


def allowing(key: Key) -> str:
    return f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}"


@bounded
async def test_keys_are_read_for_each_connection_so_they_can_be_replaced(version: str, tmp_path: Path) -> None:
    before, after, path = Key.of("U", 7), Key.of("U", 8), tmp_path / "user.nk"
    path.write_text(before.seed)
    with nats_server(version, allowing(before)) as server:
        async with connect(server.url, protocol=Nats(nkey=str(path)), backoff=BACKOFF) as bus:
            events = bus.events()
            server.kill()
            await event(events, LinkDown)
            path.unlink()
            retrying = await event(events, LinkRetrying)
            while "No such file" not in retrying.reason:
                retrying = await event(events, LinkRetrying)
            assert str(tmp_path) not in retrying.reason
            server.config = allowing(after)
            server.start()
            path.write_text(before.seed)
            while "Authorization Violation" not in retrying.reason:  # the server is there, and the new key is not yet
                retrying = await event(events, LinkRetrying)
            path.write_text("half writ")
            while "is a seed" not in retrying.reason:
                retrying = await event(events, LinkRetrying)
            path.write_text(after.seed)
            await event(events, LinkUp)
            with pytest.raises(NoHandler):
                await bus.request("echo")


@bounded
async def test_credentials_that_expire_are_replaced_by_those_in_the_file(version: str, tmp_path: Path) -> None:
    operator, path = Operator(), tmp_path / "ann.creds"
    path.write_text(operator.creds_until(int(time.time()) + 2))
    with nats_server(version, operator.config) as server:
        async with connect(server.url, protocol=Nats(creds=str(path)), backoff=BACKOFF) as bus:
            events = bus.events()
            down = await event(events, LinkDown)  # the server ends it when they expire
            assert "Expired" in down.reason
            retrying = await event(events, LinkRetrying)
            while "Authorization Violation" not in retrying.reason and "xpired" not in retrying.reason:
                retrying = await event(events, LinkRetrying)
            path.write_text(operator.creds)
            await event(events, LinkUp)
            with pytest.raises(NoHandler):
                await bus.request("echo")


@bounded
async def test_a_first_connect_says_what_is_wrong_with_a_file_or_waits_for_it(tmp_path: Path) -> None:
    key, path = Key.of("U", 7), tmp_path / "user.nk"
    bus = Bus()
    with nats_server("debian", allowing(key)) as server:
        with pytest.raises(ConnectFailed, match="the file of nkey= cannot be read: No such file") as caught:
            await works(server.url, protocol=Nats(nkey=str(path)))
        assert str(tmp_path) not in str(caught.value)
        async with bus, anyio.create_task_group() as group:
            events = bus.events()

            async def write() -> None:
                await event(events, LinkRetrying)
                path.write_text(key.seed)

            group.start_soon(write)
            async with connect(server.url, protocol=Nats(nkey=str(path)), bus=bus, wait=1000, backoff=BACKOFF):
                with pytest.raises(NoHandler):
                    await bus.request("echo")


@bounded
async def test_a_key_for_a_server_without_keys_says_so(version: str) -> None:
    with nats_server(version) as server:
        with pytest.raises(Forbidden, match="no nonce"):
            await works(server.url, protocol=Nats(nkey=Key.of("U", 7).seed))


# -- what is allowed ---------------------------------------------------------------------------------------------------------

PERMISSIONS = """authorization { users: [
    { user: ann, password: a, permissions: {
        publish: { deny: ["secret.>"] }, subscribe: { deny: ["secret.>"] } } }
    { user: mute, password: a, permissions: { publish: ">", subscribe: { deny: ["_INBOX.>"] } } }
    { user: own, password: a, permissions: { publish: ">", subscribe: { allow: ["_own.>"] } } }
] }"""


@bounded
async def test_what_the_server_does_not_allow_is_forbidden_and_the_link_lives(version: str) -> None:
    with nats_server(version, PERMISSIONS) as server:
        async with connect(at(server, "ann:a@")) as bus:
            events = bus.events()
            with pytest.raises(Forbidden, match="Permissions Violation for Publish"):
                await bus.request("secret.plan", timeout=1000)
            for _ in range(2):
                with pytest.raises(Forbidden, match="subscribe"):
                    async with bus.subscribe("secret.plan"):
                        raise AssertionError("entered")
            async with bus.subscribe("news.*") as news:
                await bus.publish("secret.news", 1)
                letter = await event(events, DeadLettered)
                while letter.subject != "secret.news":
                    letter = await event(events, DeadLettered)
                assert "Permissions Violation for Publish" in letter.reason
                async with connect(at(server, "ann:a@")) as other:
                    await other.publish("news.today", 1)
                assert (await anext(news)).body == 1
            assert bus.stats().links == 1


@bounded
async def test_a_user_that_may_not_hear_answers_is_told_so(version: str) -> None:
    with nats_server(version, PERMISSIONS) as server:
        async with connect(at(server, "mute:a@")) as bus:
            with pytest.raises(Forbidden, match=r"no answer can come.*_INBOX\.>"):
                await bus.request("echo", timeout=1000)
            await bus.publish("news", 1)
        async with connect(at(server, "own:a@", "?inbox=_own")) as bus:
            with pytest.raises(NoHandler):
                await bus.request("echo")


@bounded
async def test_a_handler_that_the_server_does_not_allow_is_told_as_a_dead_letter(version: str) -> None:
    bus = Bus()
    bus.handle("secret.echo")(_echo)
    with nats_server(version, PERMISSIONS) as server:
        async with bus:
            events = bus.events()
            async with connect(at(server, "ann:a@"), bus=bus):
                letter = await event(events, DeadLettered)
                assert letter.subject == "secret.echo"
                assert "Subscription" in letter.reason


# -- TLS ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tls")
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(folder / "key.pem")
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    yield f'cert_file: "{folder / "cert.pem"}", key_file: "{folder / "key.pem"}"'


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@bounded
async def test_tls_begins_after_info(version: str, certificate: str, trusting: ssl.SSLContext) -> None:
    with nats_server(version, f"tls {{ {certificate} }}") as server:
        url = f"nats+tls://localhost:{server.port}"
        await works(url, tls=trusting)
        with pytest.raises(ConnectFailed, match="not trusted"):
            await works(url)
        with pytest.raises(ConnectFailed, match=r"wants TLS: connect to nats\+tls://"):
            await works(at(server, "ann:secret@"))
    with nats_server(version) as server:
        with pytest.raises(ConnectFailed, match=r"no TLS: connect to nats\+tcp://"):
            await works(f"nats+tls://localhost:{server.port}", tls=trusting)


@bounded
async def test_a_certificate_of_the_client_is_a_user(
    version: str, certificate: str, authority: trustme.CA, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    config = f'tls {{ {certificate}, ca_file: "{tmp_path / "ca.pem"}", verify: true }}'
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with nats_server(version, config) as server:
        with pytest.raises(ConnectFailed):
            await works(f"nats+tls://localhost:{server.port}", tls=context)
        authority.issue_cert("ann@example.org").configure_cert(context)
        await works(f"nats+tls://localhost:{server.port}", tls=context)


@bounded
async def test_tls_comes_first_where_the_server_says_so(certificate: str, trusting: ssl.SSLContext) -> None:
    with nats_server("wheel", f"tls {{ {certificate}, handshake_first: true }}") as server:
        await works(f"nats+tls://localhost:{server.port}?tls_first=true", tls=trusting)
        with pytest.raises(ConnectFailed):
            impatient = Bus(limits=Limits(handshake_timeout=0.3))
            async with connect(f"nats+tls://localhost:{server.port}", tls=trusting, bus=impatient):
                raise AssertionError("connected")


@bounded
async def test_websockets_with_tls(version: str, certificate: str, trusting: ssl.SSLContext) -> None:
    config = f'websocket {{ listen: "127.0.0.1:-1", tls {{ {certificate} }} }}\nauthorization {{ token: "s3cret" }}'
    with nats_server(version, config) as server:
        await works(f"nats+wss://s3cret@localhost:{server.websocket_port}/", tls=trusting)
        with pytest.raises(Unauthorized):
            await works(f"nats+wss://localhost:{server.websocket_port}/", tls=trusting)


# -- ends --------------------------------------------------------------------------------------------------------------------


@bounded
async def test_a_killed_server_is_seen_at_once_and_all_is_restored_when_it_is_back(version: str) -> None:
    bus, started = Bus(), anyio.Event()

    @bus.handle("slow")
    async def slow() -> None:
        started.set()
        await anyio.sleep_forever()

    bus.handle("echo")(_echo)
    with nats_server(version) as server:
        async with connect(server.url, bus=bus, backoff=BACKOFF), connect(server.url, backoff=BACKOFF) as client:
            async with client.subscribe("news.*") as news, client.subscribe("news.>") as all_news:
                events, others = client.events(), bus.events()
                reply = client.request("slow", timeout=1000)
                await started.wait()
                server.kill()
                with pytest.raises(Disconnected) as caught:
                    await reply
                assert caught.value.sent
                await event(events, LinkDown)
                server.start()
                await event(events, LinkUp)
                await event(others, LinkUp)
                await eventually(lambda: bus.stats().running == 0)
                async with nats_py(server.address) as theirs:
                    await theirs.publish("news.today", b"1")
                    assert (await anext(news)).body == (await anext(all_news)).body == 1
                    answer = await theirs.request("echo", b"[7]")
                    assert answer.data == b"[7]"
                assert await client.request("echo", 8) == 8
            assert client.stats().reconnects == 1


@bounded
async def test_a_server_that_ends_in_order_is_a_loss_too(version: str) -> None:
    with nats_server(version) as server:
        async with connect(server.url, backoff=Backoff(initial=0.001, maximum=0.01)) as bus:
            events = bus.events()
            server.signal(15)
            down = await event(events, LinkDown)
            assert down.code in (1001, 1006)


@bounded
async def test_a_server_that_is_full_refuses_and_may_be_tried_again(version: str) -> None:
    with nats_server(version, "max_connections: 1") as server:
        async with connect(server.url):
            with pytest.raises(ConnectFailed, match="maximum connections exceeded"):
                await works(server.url)


@bounded
async def test_what_is_no_nats_server_is_no_connection(version: str) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def greet(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"SSH-2.0-OpenSSH_9.2\r\n")
            await anyio.sleep_forever()

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, greet)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(ConnectFailed, match="begins with INFO"):
            await works(f"nats+tcp://127.0.0.1:{port}")
        group.cancel_scope.cancel()


@bounded
async def test_many_requests_at_once_each_get_their_own_answer(version: str) -> None:
    bus = Bus()
    bus.handle("echo")(_echo)
    with nats_server(version) as server:
        async with connect(server.url, bus=bus), connect(server.url) as client:
            replies = [client.request("echo", "x" * 1000 + str(number)) for number in range(3000)]
            assert [await reply for reply in replies] == ["x" * 1000 + str(number) for number in range(3000)]


# -- several servers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(version: str) -> Iterator[tuple[NatsServer, NatsServer]]:
    """Two servers that know each other."""
    port = free_port()
    rest = "lame_duck_duration: 30s\nlame_duck_grace_period: 1s\n"
    first = f'cluster {{ name: c, listen: "127.0.0.1:{port}" }}\n{rest}'
    second = f'cluster {{ name: c, listen: "127.0.0.1:-1", routes: ["nats-route://127.0.0.1:{port}"] }}\n{rest}'
    with nats_server(version, first) as one, nats_server(version, second) as two:
        yield one, two


async def both_known(server: NatsServer, other: NatsServer) -> Any:
    """A connection whose server has named the other one."""
    known: Any = None
    while known is None:
        bus = Bus()
        context: Any = connect(server.url, bus=bus, backoff=BACKOFF)
        await context.__aenter__()
        if any(port == other.port for _, port in context._connector.addresses._others):
            known = context
        else:
            await context.__aexit__(None, None, None)
    return known


@bounded
async def test_another_server_of_the_cluster_is_found_when_one_is_killed(cluster: tuple[NatsServer, NatsServer]) -> None:
    one, two = cluster
    context = await both_known(one, two)
    bus = context._services.bus
    async with connect(two.url) as other:
        async with bus.subscribe("news") as news:
            events = bus.events()
            one.kill()
            await event(events, LinkUp)
            assert bus.peers[0].address.endswith(f":{two.port}")
            async with bus.subscribe("barrier"):  # what was restored is known, too, when this is entered
                await other.publish("news", 1)
            assert (await anext(news)).body == 1
    await context.__aexit__(None, None, None)


@bounded
async def test_a_lame_duck_is_left_for_another_server(cluster: tuple[NatsServer, NatsServer]) -> None:
    one, two = cluster
    context = await both_known(one, two)
    bus = context._services.bus
    one.signal(signal.SIGUSR2)
    await eventually(lambda: bus.stats().reconnects == 1)
    assert bus.peers[0].address.endswith(f":{two.port}")
    await context.__aexit__(None, None, None)
