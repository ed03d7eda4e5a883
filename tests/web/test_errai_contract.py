"""The contract of J.REP over HTTP, on each way back to the client: in an application, and by a bus alone."""

from polybus.protocols import Jrep

from .contract import alone, attached

TestAttached = attached(Jrep, path="/", transport="http")
TestAlone = alone(Jrep)
TestEvents = alone(Jrep, "?channel=events")
TestPolls = alone(Jrep, "?channel=poll")
