"""uProtocol as it is today: UMessage, in protocol buffers, with numbers for addresses.

On the wire is one serialised ``uprotocol.v1.UMessage`` a frame; `docs/reference/up.md` describes it in full.
"""

from .adapter import Up
from .names import names_in
from .services import Service, service_of, services_in

__all__ = ["Service", "Up", "names_in", "service_of", "services_in"]
