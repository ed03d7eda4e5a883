"""The contract over J.REP: both kinds of values, both handshakes, and all transports that carry its payloads."""

from polybus.protocols import Jrep
from polybus.testing import protocol_suite

TestErraiOverMemory = protocol_suite(Jrep)
TestErraiOverTcp = protocol_suite(lambda: Jrep(dialect="v3"), transport="tcp")
TestErraiOverWebSocket = protocol_suite(Jrep, transport="ws://127.0.0.1:0/bus")
TestPlainOverMemory = protocol_suite(lambda: Jrep(values="plain"))
TestPlainLegacyOverTcp = protocol_suite(lambda: Jrep(values="plain", dialect="legacy"), transport="tcp")
TestLegacyOverWebSocket = protocol_suite(lambda: Jrep(dialect="legacy", types="strict"), transport="ws://127.0.0.1:0/bus")
