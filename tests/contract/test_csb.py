"""The contract of CSB, over the transports and the event loops (`anyio_backend`)."""

from polybus.protocols import Csb
from polybus.testing import protocol_suite

TestCsbOverMemory = protocol_suite(Csb)
TestCsbOverTcp = protocol_suite(Csb, transport="tcp")
TestCsbOverWebSocket = protocol_suite(Csb, transport="ws://127.0.0.1:0/bus")
TestCsbOverUnix = protocol_suite(Csb, transport="unix")
