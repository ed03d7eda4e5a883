"""The few bytes of WebSocket that a light client needs."""

from __future__ import annotations

from struct import pack

__all__ = ["WebSocketWire"]


class WebSocketWire:
    """Greets with an upgrade and frames text; a mask of zeros leaves the text as it is."""

    websocket = True
    path = "/"
    subprotocol = ""

    def greeting(self, host: str) -> bytes:
        lines = [
            f"GET {self.path} HTTP/1.1",
            f"Host: {host}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        ]
        if self.subprotocol:
            lines.append(f"Sec-WebSocket-Protocol: {self.subprotocol}")
        return "\r\n".join([*lines, "", ""]).encode()

    @staticmethod
    def frame(text: bytes) -> bytes:
        length = len(text)
        head = pack(">BB", 0x81, 0x80 | length) if length < 126 else pack(">BBH", 0x81, 0x80 | 126, length)
        return head + bytes(4) + text
