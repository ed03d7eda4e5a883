"""J.REP: the protocol of ErraiBus, in the document's dialect and in the one that Errai really speaks.

A payload is a JSON array of messages, a message an object of parts. ``[]`` says nothing, and counts as activity.

=========== ======================================================= ==================================================
message     parts                                                   note
=========== ======================================================= ==================================================
publish     ``ToSubject``, ``Value``                                also to the handler of the subject, from Errai
notify      the same, ``"PolybusVerb": "notify"``                   the verb only between polybus peers
request     and ``ReplyTo``, ``ErrorTo``, ``PolybusTtl``            ``<subject>:<id>:RespondTo:RPC``, ``...:Errors:RPC``
response    ``ToSubject``: that of ReplyTo; ``Value``
error       ``ToSubject``: that of ErrorTo; ``ErrorMessage``,       ``PolybusCode``, ``PolybusReason``,
            ``AdditionalDetails``, ``Throwable``                    ``PolybusDetail`` (JSON as text); else Throwable says why
call        ``CommandType``: the signature, ``MethodParms``         on the bus ``<interface>:RPC.<signature>``
result      ``MethodReply``                                         none of a void method
subscribe   to the other bus: ``RemoteSubscribe``, ``Subject``      or ``SubjectsList`` or ``RemoteServices``
cancel      ``PolybusVerb``, ``ReplyTo``, ``ErrorTo``               from here on: extensions between polybus peers
open        ``PolybusVerb``, ``PolybusId``, ``PolybusMode``,        ``PolybusN``: the opener's credit
            ``PolybusN``, ``PolybusHops``, ``Value``
item        ``PolybusVerb``, ``PolybusId``, ``Value``
credit      ``PolybusVerb``, ``PolybusId``, ``PolybusN``
end         ``PolybusVerb``, ``PolybusId``                          with ``PolybusCode`` where it ended with an error
=========== ======================================================= ==================================================

Headers of any of them are JSON as text, in ``PolybusHeaders``. Other parts are the application's: `Message.attributes` when
they come, `Parts` when they go. The handshakes are tables in `handshake`, the forms of values are in `values.writer`.
"""

from .adapter import Jrep
from .formats import Parts
from .rpc import RemoteInterface
from .states import BusState, bus_states
from .values.java import JavaEnum, JavaObject, JavaTypes

__all__ = ["BusState", "JavaEnum", "JavaObject", "JavaTypes", "Jrep", "Parts", "RemoteInterface", "bus_states"]
