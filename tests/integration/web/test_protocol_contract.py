"""The contract of a protocol, kept by a bus that is attached to a FastAPI application under uvicorn."""

from polybus.protocols import Ubre
from tests.contract.core import core_of
from tests.loops import ASYNCIO, UVLOOP, on

from .contract import attached
from .support import OverAsgi

TestUbreJson = on(ASYNCIO, attached(Ubre))
TestUbreBinary = on(UVLOOP, core_of(attached(lambda: Ubre(format="binary"))))
TestUbreJsonOverAsgi = on(ASYNCIO, core_of(attached(Ubre, ws=OverAsgi)))
TestUbreBinaryOverAsgi = on(UVLOOP, core_of(attached(lambda: Ubre(format="binary"), ws=OverAsgi)))
