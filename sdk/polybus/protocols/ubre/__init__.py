"""UBRE: publish, subscribe and request in JSON or binary messages.

The document is silent or ambiguous in places; what is on the wire here follows the npm package ``ubre`` 0.0.23 where that
exists, and the document where it says more. `docs/reference/ubre.md` has the frames of all verbs in both formats.
"""

from .adapter import Ubre

__all__ = ["Ubre"]
