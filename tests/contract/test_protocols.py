"""The contract of the protocols, over the transports and the event loops (`anyio_backend`)."""

from polybus.protocols import Ubre, UProtocol
from polybus.testing import protocol_suite
from tests.loops import ASYNCIO, TRIO, UVLOOP, on

TestUbreJsonOverMemory = on(ASYNCIO, protocol_suite(Ubre))
TestUbreBinaryOverTcp = on(UVLOOP, protocol_suite(lambda: Ubre(format="binary"), transport="tcp"))
TestUbreJsonOverWebSocket = on(TRIO, protocol_suite(Ubre, transport="ws://127.0.0.1:0/bus"))
TestUbreSpecOverUnix = on(UVLOOP, protocol_suite(lambda: Ubre(dialect="spec"), transport="unix"))

BASE64 = {"test_a_body_just_below_the_limit_arrives": "base64 adds a third to a body; see tests/unit/protocols/uprotocol"}
TestUProtocolJsonOverMemory = on(UVLOOP, protocol_suite(UProtocol, skip=BASE64))
TestUProtocolProtobufOverTcp = on(TRIO, protocol_suite(lambda: UProtocol(format="protobuf"), transport="tcp"))
TestUProtocolProtobufOverWebSocket = on(
    ASYNCIO, protocol_suite(lambda: UProtocol(format="protobuf"), transport="ws://127.0.0.1:0/bus")
)
