"""The contract of the transports, on the event loops (`anyio_backend`)."""

from polybus.testing import transport_suite
from polybus.testing.contract._base import ground_of
from polybus.transports import Memory, Tcp, Unix, WebSocket

TestMemory = transport_suite(Memory, ground_of("memory"))
TestTcp = transport_suite(Tcp, "tcp://127.0.0.1:0")
TestUnix = transport_suite(Unix, ground_of("unix"))
TestWebSocket = transport_suite(WebSocket, "ws://127.0.0.1:0/bus")
