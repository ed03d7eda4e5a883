"""WebSockets: handshakes, framing and transport, on own sockets or in an ASGI server."""
