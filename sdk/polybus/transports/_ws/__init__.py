"""WebSockets: handshakes, framing, and the transport, on sockets of ours or in an ASGI server."""
