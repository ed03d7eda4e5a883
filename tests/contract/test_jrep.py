"""The contract over J.REP: both kinds of values, both handshakes, and all transports that carry its payloads."""

from polybus.protocols import Jrep
from polybus.testing import protocol_suite
from tests.loops import ASYNCIO, TRIO, UVLOOP, on

TestErraiOverMemory = on(TRIO, protocol_suite(Jrep))
TestErraiOverTcp = on(ASYNCIO, protocol_suite(lambda: Jrep(dialect="v3"), transport="tcp"))
TestPlainOverWebSocket = on(UVLOOP, protocol_suite(lambda: Jrep(values="plain"), transport="ws://127.0.0.1:0/bus"))
TestLegacyOverTcp = on(ASYNCIO, protocol_suite(lambda: Jrep(dialect="legacy", types="strict"), transport="tcp"))
