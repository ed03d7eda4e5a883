"""TLS options per URL scheme, and readable reasons for failed TLS handshakes."""

from __future__ import annotations

import ssl
from typing import Final

from ..errors import LocalProtocolError
from ..plugins.close_codes import CERTIFICATE_ASKED, LOAD_CERTIFICATE

_SECURE: Final = {"tcp": "tls", "ws": "wss", "http": "https"}


def check_client_tls(scheme: str, given: ssl.SSLContext | None) -> bool:
    """Return True if a scheme uses TLS. Raises `LocalProtocolError` if a context is passed for a scheme without TLS."""
    if given is not None and scheme in _SECURE:
        text = f"tls= given for {scheme}://, which is not encrypted: use {_SECURE[scheme]}://"
        raise LocalProtocolError(text, protocol=scheme)
    return scheme not in _SECURE


def check_server_tls(scheme: str, given: ssl.SSLContext | None) -> None:
    """Raise `LocalProtocolError` if a TLS context is missing for a scheme with TLS, or passed for a scheme without TLS."""
    if scheme in _SECURE and given is not None:
        raise LocalProtocolError(f"tls= given for {scheme}://: use {_SECURE[scheme]}://", protocol=scheme)
    if scheme not in _SECURE and given is None:
        raise LocalProtocolError(f"{scheme}:// needs tls= with the server's certificate", protocol=scheme)


_EXPIRED: Final = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_OF_ANOTHER: Final = (62, 63, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_EMAIL_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_NOT_TRUSTED: Final = ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED")
_ANY: Final = "ALERT_HANDSHAKE_FAILURE"
"""The alert for versions and ciphers, which servers with TLS 1.2 also send to clients without a certificate."""
_WANTED: Final = ("CERTIFICATE_REQUIRED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")
CUT: Final = ("the server closed the connection during the TLS handshake", f"it may be full; {CERTIFICATE_ASKED}")


def client_fault(error: ssl.SSLError) -> tuple[str, str]:
    """Return why a client's TLS handshake failed, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _EXPIRED:
            late, then = ("has expired", "renew it") if error.verify_code == _EXPIRED[1] else ("is not valid yet", "wait")
            return f"the server's certificate {late}", f"{then}, or set the clock of this machine"
        if error.verify_code in _OF_ANOTHER:
            whom = error.verify_message.rpartition("for ")[2].strip("'.") or "this name"
            return f"the server's certificate is not for {whom}", "connect to a name in it, or add this name to it"
        return (
            f"the server's certificate is not trusted ({error.verify_message})",
            "name its certificate authority with --ca, or with tls=ssl.create_default_context(cafile=...)",
        )
    reason = error.reason or str(error)
    if any(word in reason for word in _NO_TLS):
        return (
            f"the server does not use TLS on this port ({reason})",
            "write ws:// instead of wss://, tcp:// instead of tls://, or http:// instead of https://",
        )
    if any(word in reason for word in _WANTED):
        return (f"the server requires a client certificate ({reason})", LOAD_CERTIFICATE)
    if any(word in reason for word in _NOT_TRUSTED):
        return (
            f"the server refuses the client's certificate, or requires one ({reason})",
            f"{LOAD_CERTIFICATE}, that is valid and from an authority that the server trusts",
        )
    if "EOF" in reason:
        return CUT
    compare = "compare the TLS versions and ciphers of both sides"
    return f"the TLS handshake failed ({reason})", f"{compare}; {CERTIFICATE_ASKED}" if _ANY in reason else compare


def server_reason(error: BaseException) -> str:
    reason = (error.reason or str(error)) if isinstance(error, ssl.SSLError) else "EOF"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted ({error.verify_message})"
    if any(word in reason for word in _NOT_TRUSTED):
        return f"the client does not trust this server's certificate ({reason})"
    if "EOF" in reason:
        return "the client disconnected during the TLS handshake: does it trust this server's certificate?"
    if "NO_SHARED_CIPHER" in reason:
        return f"the TLS handshake failed ({reason}): does tls= have a certificate, by load_cert_chain(cert, key)?"
    if any(word in reason for word in _NO_TLS):
        return f"the client does not use TLS ({reason}): it must connect with wss://, tls:// or https://"
    if any(word in reason for word in _WANTED):
        return f"the client has no certificate ({reason}), and this server requires one"
    return f"the TLS handshake failed ({reason})"
