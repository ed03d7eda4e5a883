"""Current uProtocol, which uses UMessage protocol buffers and numeric addresses.

Each frame is one serialised ``uprotocol.v1.UMessage``. See `docs/reference/up.md`.
"""

from .adapter import Up
from .names import names_in
from .services import Service, service_of, services_in

__all__ = ["Service", "Up", "names_in", "service_of", "services_in"]
