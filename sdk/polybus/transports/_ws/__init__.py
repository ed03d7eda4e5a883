"""WebSockets: handshakes, framing and transport."""
