"""Describes a bus's handlers, subscriptions and publications in an AsyncAPI 3 document.

It also shows the document as an HTML page, and writes its types in TypeScript. ``polybus schema app:bus`` and
``polybus.fastapi.attach(..., docs="/bus/docs")`` use this package.
"""

from .document import document, to_text
from .page import page
from .typescript import typescript

__all__ = ["document", "page", "to_text", "typescript"]
