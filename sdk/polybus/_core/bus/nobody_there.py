"""Advice for a first connect to an address where nobody is."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from ...errors import ConnectFailed

_ABSENT: Final = ("nobody listens there", "no such file", "nobody serves this name in this event loop")
"""Ends of the reasons that mean that."""
_STARTING: Final = "it may still be starting"
"""The end of the reason that means a server that is there, and has said nothing yet."""
_IMPLIED: Final = {"ws": 80, "http": 80, "wss": 443, "https": 443}


def advice_for(error: ConnectFailed, of_cluster: bool = False) -> str | None:
    """Say what to do about it, behind the reason; None where somebody was there and has answered."""
    longer = "Cluster(..., wait=30) waits for it as long" if of_cluster else "connect(..., wait=30) goes on trying"
    if error.reason.endswith(_STARTING):
        return f"; {longer}"
    if not error.reason.endswith(_ABSENT):
        return None
    scheme, _, address = error.url.partition("://")
    implied = _IMPLIED.get(scheme.rpartition("+")[2]) if urlsplit(f"//{address}").port is None else None
    where = "" if implied is None else f" (on port {implied}, since the URL names none)"
    if of_cluster:
        return f"{where}; is the NATS server of the cluster running? {longer}"
    return f"{where}; is the server running? {longer}"
