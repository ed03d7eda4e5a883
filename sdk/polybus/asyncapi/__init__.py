"""AsyncAPI 3: a document of a bus's handlers, subscriptions and publications, an HTML page of it, and its types in
TypeScript.

``polybus schema app:bus`` and ``polybus.fastapi.attach(..., docs="/bus/docs")`` use it.
"""

from .document import document, to_text
from .page import page
from .typescript import typescript

__all__ = ["document", "page", "to_text", "typescript"]
