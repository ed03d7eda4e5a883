"""Generates AsyncAPI 3 documents for a bus's handlers, subscriptions and publications.

Can also render a document as an HTML page or as TypeScript types. Used by ``polybus schema app:bus`` and
``polybus.fastapi.attach(..., docs="/bus/docs")``.
"""

from .document import document, to_text
from .page import page
from .typescript import typescript

__all__ = ["document", "page", "to_text", "typescript"]
