"""The contract of the protocols, over the transports and the event loops (`anyio_backend`)."""

from polybus.protocols import Ubre, UProtocol
from polybus.testing import protocol_suite

TestUbreJsonOverMemory = protocol_suite(Ubre)
TestUbreJsonOverTcp = protocol_suite(Ubre, transport="tcp")
TestUbreJsonOverWebSocket = protocol_suite(Ubre, transport="ws://127.0.0.1:0/bus")
TestUbreBinaryOverMemory = protocol_suite(lambda: Ubre(format="binary"))
TestUbreBinaryOverTcp = protocol_suite(lambda: Ubre(format="binary"), transport="tcp")
TestUbreBinaryOverWebSocket = protocol_suite(lambda: Ubre(format="binary"), transport="ws://127.0.0.1:0/bus")
TestUbreSpecOverUnix = protocol_suite(lambda: Ubre(dialect="spec"), transport="unix")

BASE64 = {"test_a_body_just_below_the_limit_arrives": "base64 adds a third to a body; see tests/protocols/uprotocol"}
TestUProtocolJsonOverMemory = protocol_suite(UProtocol, skip=BASE64)
TestUProtocolJsonOverTcp = protocol_suite(UProtocol, transport="tcp", skip=BASE64)
TestUProtocolJsonOverWebSocket = protocol_suite(UProtocol, transport="ws://127.0.0.1:0/bus", skip=BASE64)
TestUProtocolProtobufOverMemory = protocol_suite(lambda: UProtocol(format="protobuf"))
TestUProtocolProtobufOverTcp = protocol_suite(lambda: UProtocol(format="protobuf"), transport="tcp")
TestUProtocolProtobufOverWebSocket = protocol_suite(lambda: UProtocol(format="protobuf"), transport="ws://127.0.0.1:0/bus")
