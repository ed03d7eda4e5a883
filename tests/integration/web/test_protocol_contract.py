"""The contract of a protocol, kept by a bus that is attached to a FastAPI application under uvicorn."""

from polybus.protocols import Ubre
from tests.loops import ASYNCIO, UVLOOP, on

from .contract import attached

TestUbreJson = on(ASYNCIO, attached(Ubre))
TestUbreBinary = on(UVLOOP, attached(lambda: Ubre(format="binary")))
