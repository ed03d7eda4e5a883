"""CSB, Client Server Broker: numbered actions, requests and responses in both directions, with or without a broker.

Eight bytes, then the payload (document CSB, "Common Message Structure"; big endian)::

     0       4       8              16                              32
    +-------+-------+---------------+-------------------------------+
    | kind  | enc.  | result        | message id                    |
    +-------+-------+---------------+-------------------------------+
    | action id                                                     |
    +---------------------------------------------------------------+
    | payload ...

Between a broker and a server the number of the client (uint32) stands in front. Kinds: request 1, response 2, connected 0xD,
closed 0xE, close 0xF. Encodings: binary 0, string 1, json 2, urlencoded 3, base64 4. Results: `results.RESULTS`.

A payload of no bytes that is binary or JSON is no body; bytes that are there but empty are written as base64.

Actions from 0xFFFF0000 are ours. What goes to those up to 4 any peer may read and write; it is a request like any other and is
answered. The rest, and what says "ours", passes only between polybus peers: after a hello, or on these actions alone.

========== ============== =========================================== =====================================================
action     verb           payload                                     note
========== ============== =========================================== =====================================================
0xFFFF0000 hello          ``{"v": 1, "asks": text}``                  a polybus answers ``{"v": 1}``, an echo does not
0xFFFF0001 subscribe      length, pattern
0xFFFF0002 unsubscribe    length, pattern
0xFFFF0003 publish        length, subject, body                       ours: message id 0, and not answered after a hello
0xFFFF0004 request        length, subject, body                       a name that has no number
0xFFFF0005 request        length, more, ttl, subject, extras, body    ours: with deadline or headers
0xFFFF0006 publish        length, more, ttl, subject, extras, body    ours: with headers
0xFFFF0007 open           length, more, ttl, subject, extras, body    ours: extras hold ``mode``, ``n`` (credit), ``hops``
0xFFFF0008 cancel         uint32 action of the request                ours: message id of the request
0xFFFF0009 item           body                                        ours: message id of the open; a request from its
                                                                      sender, a response from its receiver
0xFFFF000A credit         uint32                                      ours: the same
0xFFFF000B end            nothing, or an error as JSON                ours: the same
0xFFFF000C deadline       uint32 action of the request, uint32 ttl    ours: message id of the request, which follows
========== ============== =========================================== =====================================================

``length`` (uint16) counts the bytes of the subject or pattern; 0xFFFF stands for an action's number in four bytes. ``more``
(uint16) counts the bytes of the extras, a JSON object: ``headers``. ``ttl`` (uint32) is in milliseconds, 0xFFFFFFFF for none.
Errors of ours are ``{"code", "reason", "text", "detail"}`` as JSON behind the result byte.
"""

from .adapter import Csb

__all__ = ["Csb"]
