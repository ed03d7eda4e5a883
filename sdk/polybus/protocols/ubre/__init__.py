"""UBRE: publish, subscribe and request in JSON or binary messages.

The document is silent or ambiguous in places; what is on the wire here follows the npm package ``ubre`` 0.0.23 where that
exists, and the document where it says more.

**JSON** (``format=json``, the default). One object a frame, with exactly one verb; other members are ignored.

=========== ==================================================== =====================================================
verb        frame                                                note
=========== ==================================================== =====================================================
subscribe   ``{"subscribe": subject}``
unsubscribe ``{"unsubscribe": subject}``
publish     ``{"publish": subject, "body": any}``
request     ``{"request": subject, "id": id, "body": any}``      ``dialect=named``, what npm writes
request     ``{"request": id, "body": {"subject", "body"}}``     ``dialect=spec``, the document's; read when ``id`` is missing
success     ``{"success": id, "body": any}``
fail        ``{"fail": id, "body": text, "code": number}``       nobody serves it: the body is ``"NotFound"``
cancel      ``{"cancel": id}``                                   from here on: extensions between polybus peers
open        ``{"open": id, "subject", "mode", "n", "hops"}``     ``n``: the opener's credit
item        ``{"item": id, "body": any}``                        or ``"data": base64`` for bytes; the same in open
credit      ``{"credit": id, "n": number}``
end         ``{"end": id}``                                      ``"code"`` where it ended with an error
=========== ==================================================== =====================================================

Further members of ours, which other peers ignore: ``headers`` (text to text) in publish, request, success, fail and open;
``ttl`` (milliseconds, whole) in request and open; ``reason``, ``detail`` and, where the body does not hold it, ``text`` in fail
and end. A notification is a request whose answer is not waited for.

**Binary** (``format=binary``). Type (uint8), length of the name (uint16), length of the body (uint32), name, body; big endian.

====== =========== ====================================== =========================================================
type   verb        name                                   note
====== =========== ====================================== =========================================================
``S``  subscribe   subject
``U``  unsubscribe subject                                not in the document
``P``  publish     subject [NUL extras]
``R``  request     id NUL subject [NUL extras]            named; a bare id is the document's dialect
``s``  success     id [NUL extras]
``f``  fail        id [NUL extras]                        0x66; 0x63, the table's hex, is read too
``C``  cancel      id                                     extension, as all that follow
``O``  open        id NUL subject NUL extras              ``o`` when the body is bytes and not JSON
``I``  item        id                                     ``i`` when the body is bytes and not JSON
``K``  credit      id NUL extras
``E``  end         id [NUL extras]
====== =========== ====================================== =========================================================

``extras`` is a JSON object with the further members named above. A request in the document's dialect that has extras writes
``id NUL NUL extras`` with ``"spec": true`` in them. A body length of 0 is no body, -1 (0xFFFFFFFF) is "the rest of this frame":
always read, written with ``body_length=-1`` and for bytes that are there but empty. With ``body=raw`` bodies of publish,
request and success are bytes, and of fail text. Ids are text.
"""

from .adapter import Ubre

__all__ = ["Ubre"]
