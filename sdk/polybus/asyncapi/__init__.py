"""AsyncAPI 3: a document of what a bus can be asked and told, from its handlers, and a page of it for people.

``polybus schema app:bus`` and ``polybus.fastapi.attach(..., docs="/bus/docs")`` use it.
"""

from .document import document, to_text
from .page import page

__all__ = ["document", "page", "to_text"]
