"""WebSockets: handshakes, framing and transport, over polybus's own sockets or in an ASGI server."""
