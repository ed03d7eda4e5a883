"""The contract of the protocols, over the transports and the event loops (`anyio_backend`)."""

from polybus.protocols import Ubre
from polybus.testing import protocol_suite

TestUbreJsonOverMemory = protocol_suite(Ubre)
TestUbreJsonOverTcp = protocol_suite(Ubre, transport="tcp")
TestUbreJsonOverWebSocket = protocol_suite(Ubre, transport="ws://127.0.0.1:0/bus")
TestUbreBinaryOverMemory = protocol_suite(lambda: Ubre(format="binary"))
TestUbreBinaryOverTcp = protocol_suite(lambda: Ubre(format="binary"), transport="tcp")
TestUbreBinaryOverWebSocket = protocol_suite(lambda: Ubre(format="binary"), transport="ws://127.0.0.1:0/bus")
TestUbreSpecOverUnix = protocol_suite(lambda: Ubre(dialect="spec"), transport="unix")
