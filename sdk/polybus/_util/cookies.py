"""Reads Cookie headers. Only servers whose clients have some load this."""

from http.cookies import CookieError, SimpleCookie


def cookies_of(text: str) -> dict[str, str]:
    """Cookies of a Cookie header, for `Handshake.cookies`; empty if it is malformed."""
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(text).items()}
    except CookieError:
        return {}
