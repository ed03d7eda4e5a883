"""Stand-ins for Errai's own client, each based on observed facts."""

from typing import Any

from polybus.protocols.jrep.names import CLIENT_BUS, ERRORS_SUFFIX, REPLY_SUFFIX

from .raw import SERVICES, Peer


class ClientMessageBusImpl:
    """Errai's client bus over a raw peer: it sends only to subjects that it was told of (notes of the second round, S2).

    What is subscribed between Associate and FinishAssociation it tells in one RemoteSubscribe afterwards, with all that it has
    in RemoteServices, its own bus included (B2).
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.remote: set[str] = set()  # subjects that it may send to; nothing ever leaves this set
        self.subscriptions: set[str] = set()
        self.services: dict[str, Any] = {}  # what they answer: a function of the message
        self.heard: list[dict[str, Any]] = []
        self.told: list[tuple[str, str]] = []  # what the server has said about its subjects

    async def start(self, *while_connecting: str) -> None:
        finish = await self.peer.associate(SERVICES)
        self.remote.update(finish["RemoteServices"].split(","))
        if while_connecting:
            names = ",".join(("ClientBusErrors", "ClientBus", "SSEAgent", *while_connecting))
            await self.command("RemoteSubscribe", PriorityProcessing="1", RemoteServices=names)

    async def command(self, verb: str, **parts: Any) -> None:
        await self.peer.say({"ToSubject": "ServerBus", "CommandType": verb, **parts})

    async def subscribe(self, subject: str) -> None:
        self.subscriptions.add(subject)
        await self.command("RemoteSubscribe", Subject=subject, PriorityProcessing="1")

    async def send(self, message: dict[str, Any]) -> None:
        """As `ClientMessageBusImpl.send`: what nobody has announced goes nowhere."""
        if message["ToSubject"] in self.remote:
            await self.peer.say(message)

    async def listen(self) -> None:
        while True:
            await self.take(await self.peer.hear())

    async def take(self, message: dict[str, Any]) -> None:
        subject = message["ToSubject"]
        if subject == CLIENT_BUS:
            await self._learn(message)
            return
        self.heard.append(message)
        if subject in self.services and "ReplyTo" in message:
            answer = self.services[subject](message)
            goal = message["ErrorTo"] if "ErrorMessage" in answer else message["ReplyTo"]
            await self.send({"ToSubject": goal, **answer})

    async def _learn(self, message: dict[str, Any]) -> None:
        verb, subject = message["CommandType"], message.get("Subject", "")
        self.told.append((verb, subject))
        if verb == "RemoteSubscribe":
            self.remote.add(subject)
        elif verb == "RemoteUnsubscribe":
            # It ends its own subscriptions, had it any or not, and tells the server: that is how it reads the command.
            self.subscriptions.discard(subject)
            if not subject.endswith((REPLY_SUFFIX, ERRORS_SUFFIX)):
                await self.command("RemoteUnsubscribe", Subject=subject, PriorityProcessing="1")
