"""A card-game lobby behind a broker: two servers, four players, and one server that closes while its players sit there.

The broker forwards frames without understanding them. A server sees its players as peers, and a player sees no difference from
a direct connection. In real life broker, servers and players are separate processes:

    polybus broker --clients csb+ws://127.0.0.1:8000/lobby --servers csb+tcp://127.0.0.1:9000
"""

import anyio
from attrs import frozen

from polybus import Backoff, Broker, Bus, Context, Disconnected, Peer, Subject, Unavailable, connect
from polybus.protocols import Csb


@frozen
class Seat:
    """A player's seat."""

    server: str
    table: int


@frozen
class Result:
    """The winner."""

    winner: str
    card: str


JOIN = Subject("lobby.join", str, Seat)
PLAY = Subject("table.play", list[str], str)
# The numbers on the wire; CSB clients in any language can use them.
PROTOCOL = Csb(actions={"lobby.join": 0x00010001, "table.play": 0x00020001})
CARDS = "23456789TJQKA"


class Lobby:
    """A server. Two players share a table; both are asked for a card, and the higher one wins."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[tuple[str, Peer]] = []
        self.tables = 0
        self.bus = Bus()
        self.bus.handle(JOIN)(self.join)

    async def join(self, player: str, ctx: Context) -> Seat:
        assert ctx.peer is not None
        self.waiting = [(name, peer) for name, peer in self.waiting if peer.connected]
        self.waiting.append((player, ctx.peer))
        seat = Seat(self.name, self.tables + 1)
        if len(self.waiting) == 2:
            self.tables += 1
            await self.play(seat.table)
        return seat

    async def play(self, table: int) -> None:
        seated, self.waiting = sorted(self.waiting, key=lambda seat: seat[0]), []
        hands = (["2S", "9H", "KD"], ["3C", "AC", "4S"])
        asked = [peer.request(PLAY, hand, timeout=5) for (_, peer), hand in zip(seated, hands, strict=True)]
        cards = [await reply for reply in asked]
        best = max(range(2), key=lambda index: CARDS.index(cards[index][0]))
        for _, peer in seated:
            await peer.publish(f"table.{table}", Result(seated[best][0], cards[best]))


async def play(name: str, url: str, server: str, rounds: int) -> None:
    """A player who always plays the highest card. When the server is gone, the broker finds another."""
    bus = Bus()

    @bus.handle(PLAY)
    async def choose(hand: list[str]) -> str:
        return max(hand, key=lambda card: CARDS.index(card[0]))

    headers = {"x-csb-server": server} if server else None
    async with connect(url, bus=bus, protocol=PROTOCOL, headers=headers, backoff=Backoff(maximum=0.2)):
        async with bus.subscribe("table.*", returns=Result) as results:
            for _ in range(rounds):
                seat = await join(bus, name)
                result = (await anext(results)).body
                print(f"{name} at table {seat.table} of {seat.server}: {result.winner} wins with {result.card}")


async def join(bus: Bus, name: str) -> Seat:
    while True:
        try:
            return await bus.request(JOIN, name, timeout=5)
        except (Disconnected, Unavailable):
            await anyio.sleep(0.01)


async def main() -> None:
    async with Broker(clients="csb+ws://127.0.0.1:0/lobby", servers="csb+tcp://127.0.0.1:0") as broker:
        (for_players,), (for_servers,) = broker.client_urls, broker.server_urls
        behind = Csb(actions=dict(PROTOCOL.actions), side="broker-server", server="west", pool=2)
        async with connect(for_servers.partition("?")[0], protocol=behind, bus=Lobby("west").bus):
            east = Csb(actions=dict(PROTOCOL.actions), side="broker-server", server="east")
            async with connect(for_servers.partition("?")[0], protocol=east, bus=Lobby("east").bus):
                async with anyio.create_task_group() as players:
                    for name, server in (("Ann", "east"), ("Bob", "east"), ("Cid", "west"), ("Dee", "west")):
                        players.start_soon(play, name, for_players, server, 1)
                print(f"{broker.stats().clients_accepted_total} players, {len(broker.stats().server_clients)} servers")
            async with anyio.create_task_group() as players:
                for name in ("Ann", "Bob"):
                    players.start_soon(play, name, for_players, "", 1)
            print(f"east has closed: {len(broker.stats().server_clients)} server")


if __name__ == "__main__":
    anyio.run(main)
