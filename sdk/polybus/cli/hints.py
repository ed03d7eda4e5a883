"""Hints about a step that failed."""

from __future__ import annotations

import errno
import socket
import ssl

from .. import BadRequest, Disconnected, Forbidden, NoHandler, RequestError, Unauthorized
from .problems import NATS_CREDENTIALS

_BY_NUMBER = {
    errno.ECONNREFUSED: (
        "start the server, or correct host and port; "
        "one in a container or on another machine must listen on more than 127.0.0.1"
    ),
    errno.ENOENT: "the server has not made it yet, or under another path: start it, or correct the URL",
    errno.EACCES: "this user may not: look at the permissions of the socket and of its folder",
    errno.ENETUNREACH: "there is no route: is the network, or the VPN, up?",
    errno.EHOSTUNREACH: "there is no route to the host: is it on, and in this network?",
    errno.ECONNRESET: "the server, or something before it, cut the connection: look into its log",
}
_NO_UPGRADE = "the server does not upgrade here: is there a proxy that does not pass on Upgrade and Connection?"
_BEHIND_PROXY = "a proxy is there, but the server behind it is not"
_BY_CLASS: tuple[tuple[type[Exception], str], ...] = (
    (Unauthorized, "identify yourself, for example with --header 'authorization: Bearer TOKEN'"),
    (Forbidden, "this identity, origin or host may not: ask whoever runs the server, or try another --header"),
    (NoHandler, "the server is well, but has no such handler: is the subject spelled as in its handle()?"),
    (BadRequest, "the server is well, but wants another body: see --body"),
    (RequestError, "the server is well, its handler is not: look into its log"),
    (socket.gaierror, "the name is misspelled, or this machine's DNS does not know it"),
)
_BY_ANSWER = (
    ("answered 404", "the server is there, but has no bus at this path: correct the path of the URL"),
    ("answered 421", "the server does not know this host name: serve(hosts=...) or attach(hosts=...) names further ones"),
    ("no common sub-protocol", "the server is there, and the URL names another protocol than its own"),
    ("does it want tls", "try the URL with TLS (wss)"),
    ("answered 400", _NO_UPGRADE),
    ("answered 426", _NO_UPGRADE),
    ("answered 502", _BEHIND_PROXY),
    ("answered 503", _BEHIND_PROXY),
    ("answered 504", _BEHIND_PROXY),
    ("does not answer in http", "the port speaks something else: try tcp, tls or wss in place of ws"),
    ("closed", "the port may want TLS (wss), or speak something else (tcp)"),
    ("", "is this the port and the path of a WebSocket server?"),
)
"""Words in the text of a failed upgrade, and their hint; the last one is that of all others."""
_SILENCE = {
    "resolve": "the name server does not answer: look at the DNS settings",
    "connect": "a firewall may swallow the packets, or the address is wrong",
    "tls": "something accepts connections there, but speaks no TLS: try the URL without TLS (ws, tcp)",
    "upgrade": "something accepts connections there, but no WebSocket upgrade: compare port and path with the server's URL",
    "handshake": "the protocol of the URL is perhaps another one than the server's",
    "request": (
        "the connection stands and nothing is answered: the server may be stuck, or speak another protocol, format or dialect"
    ),
}
_NATS_PORTS = "is this the port for clients, by default 4222, and not that for monitoring (8222) or for routes (6222)?"
_OWN_CERTIFICATE = "does it want a certificate of this client (--cert FILE --key FILE)?"
_HANDSHAKE = "compare protocol and options of the URL (format=, dialect=) with those that the server was started with"


def silence(step: str) -> str:
    """For a step in which nothing happened."""
    return _SILENCE.get(step, "the server does not go on: look into its log")


def of(error: Exception, step: str, scheme: str, protocol: str) -> str:
    """For an error in a step."""
    if isinstance(error, ssl.SSLError):
        return _of_tls(error)
    if isinstance(error, Unauthorized) and protocol == "nats":
        return NATS_CREDENTIALS
    if isinstance(error, Forbidden) and (hint := _of_refusal(str(error).lower())) is not None:
        return hint
    for kind, hint in _BY_CLASS:
        if isinstance(error, kind):
            return hint
    text = str(getattr(error, "reason", None) or error).lower()
    if "timed out" in text:
        return silence(step)
    if "reset" in text and step in ("tls", "upgrade"):
        return _BY_NUMBER[errno.ECONNRESET]
    if isinstance(error, OSError) and error.errno in _BY_NUMBER:
        return _BY_NUMBER[error.errno]
    if step == "connect":  # several addresses: no number
        return _BY_NUMBER[errno.ECONNREFUSED]
    if step == "tls":
        return "try the URL without TLS (ws, tcp)"
    encrypted = scheme in ("tls", "wss", "https")
    if step == "upgrade" and encrypted and "closed the connection" in text:
        return f"{_OWN_CERTIFICATE} Or the port speaks something else (tls)"
    if step == "upgrade":
        return next(hint for words, hint in _BY_ANSWER if words in text)
    if "http" in text:
        return f"the server speaks HTTP: try {protocol}+ws:// and the path of the bus"
    if step == "handshake" and protocol == "nats":
        return f"{_NATS_PORTS} {'D' + _OWN_CERTIFICATE[1:] if encrypted else ''}".rstrip()
    if step in ("handshake", "peer", "request") or isinstance(error, Disconnected):
        tls = f"; {_OWN_CERTIFICATE if encrypted else 'does it want TLS (tls, wss)?'}"
        return f"the server ended the connection: {_HANDSHAKE}{tls}"
    return "is the server running there, under this name?"


def _of_refusal(text: str) -> str | None:
    """For a 403 whose text says what it is about."""
    if "does not say why" in text:
        return "compare the path with that of the server's URL"
    if "origin " in text:
        return "the server's origins= says whose pages may connect: leave out --header origin, or have this one added"
    if "of its own machine alone" in text:
        return "a proxy on the way says that you come from another machine, and the server has no authenticate"
    if "lets nobody in" in text or "reached from other machines" in text:
        return "the server has no authenticate and can be reached from other machines: look into its log"
    return None


def _of_tls(error: ssl.SSLError) -> str:
    text = str(error).lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        if "expired" in text:
            return "renew the certificate of the server (and check the clock of this machine)"
        if "not yet valid" in text:
            return "correct the clock of this machine, or that of the one which made the certificate"
        if "hostname" in text or "ip address" in text:
            return "use a name that stands in the certificate, or have this one added to it"
        return "name the authority that signed it with --ca FILE"
    if any(words in text for words in ("wrong_version_number", "wrong version number", "record layer", "record_layer")):
        return "try the URL without TLS (ws, tcp)"
    if "certificate required" in text or "certificate_required" in text:
        return "the server wants a client certificate: show one with --cert FILE --key FILE"
    return "compare the TLS versions of both sides; the log of the server says more"
