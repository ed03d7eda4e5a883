"""AsyncAPI 3: a document of what a bus can be asked and told, from its handlers, a page of it for people, and its
types in TypeScript.

``polybus schema app:bus`` and ``polybus.fastapi.attach(..., docs="/bus/docs")`` use it.
"""

from .document import document, to_text
from .page import page
from .typescript import typescript

__all__ = ["document", "page", "to_text", "typescript"]
