"""UBRE: publish, subscribe and request with JSON or binary messages.

Where the document is silent or ambiguous, polybus follows the npm package ``ubre`` 0.0.23. `docs/reference/ubre.md` shows the
frames of all verbs in both formats.
"""

from .adapter import Ubre

__all__ = ["Ubre"]
