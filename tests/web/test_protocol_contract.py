"""The contract of a protocol, kept by a bus that is attached to a FastAPI application under uvicorn."""

from polybus.protocols import Ubre

from .contract import attached

TestUbreJson = attached(Ubre)
TestUbreBinary = attached(lambda: Ubre(format="binary"))
