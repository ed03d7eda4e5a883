"""Logs warnings about server certificates that have expired or are about to expire."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from .logs import log_fields
from .sources import sources

if TYPE_CHECKING:
    import ssl

logger: logging.Logger = logging.getLogger("polybus.transports")

EXPIRES_SOON: Final = timedelta(days=14)
"""Time before expiry at which to warn about a certificate. Certificates are usually renewed a month before they expire."""

_TIME: Final = rb"(?:\x17\x0d|\x18\x0f)(\d{12,14}Z)"
"""A UTCTime, or a GeneralizedTime, in DER."""
_VALIDITY: Final = re.compile(rb"\x30." + _TIME + _TIME, re.DOTALL)
"""The validity: a sequence of two times. Only the serial number, algorithm and issuer precede it in a certificate."""


def warn_of_certificate(tls: ssl.SSLContext, url: str) -> None:
    """Log a warning if a server's certificate has expired, isn't valid yet, or expires within `EXPIRES_SOON`. Never raises.

    Certificates that an SNI callback selects aren't checked.
    """
    if tls.sni_callback is not None:
        return
    now = datetime.fromtimestamp(sources.get().wall_clock_ns() / 1e9, UTC)
    try:
        begin, end = map(_moment, _VALIDITY.findall(_shown_by(tls))[0])
    except Exception:  # clients report invalid certificates
        return
    fields = log_fields(address=url)
    if now >= end:
        text = "the certificate of %s has expired, on %s: clients refuse it; renew it, and restart the service"
        logger.warning(text, url, _told(end), extra=fields)
    elif now < begin:
        text = "the certificate of %s is not valid before %s, and clients refuse it: is the clock of this machine right?"
        logger.warning(text, url, _told(begin), extra=fields)
    elif end - now <= EXPIRES_SOON:
        text = "the certificate of %s expires on %s: renew it, and restart the service, which reads it at its start only"
        logger.warning(text, url, _told(end), extra=fields)


def _told(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _shown_by(tls: ssl.SSLContext) -> bytes:
    """Return the certificate of a server context in DER, from a handshake in memory, because `ssl` offers no other way.

    The handshake fails if, for example, the context requires client certificates with TLS 1.2.
    """
    import ssl  # some platforms lack it

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there = tls.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server)
    for _ in range(3):  # one more than TLS 1.2 needs, in case the server requests another key
        with suppress(ssl.SSLWantReadError):
            here.do_handshake()
            break
        with suppress(ssl.SSLWantReadError):
            there.do_handshake()
    return here.getpeercert(binary_form=True) or b""


def _moment(time: bytes) -> datetime:
    text = time.decode("ascii")
    if len(text) == len("YYMMDDhhmmssZ"):  # the century is as in RFC 5280
        text = f"{'20' if text < '50' else '19'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
