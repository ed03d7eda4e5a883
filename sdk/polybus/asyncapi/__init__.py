"""Generates AsyncAPI 3 documents of a bus's handlers, subscriptions and publications.

A document can also become an HTML page or TypeScript types. ``polybus schema app:bus`` and
``polybus.fastapi.attach(..., docs="/bus/docs")`` use this package.
"""

from .document import document, to_text
from .page import page
from .typescript import typescript

__all__ = ["document", "page", "to_text", "typescript"]
