"""A browser's windows and frames in one process, and the handshake of ``polybus.js`` between them, for tests without a browser.

The ports that they give are those of `polybus.transports.postmessage`.
"""

from .handshake import ServedFrame, StrangeHello, connect_to_host, serve_frame
from .window import Frame, Window, WindowProxy

__all__ = ["Frame", "ServedFrame", "StrangeHello", "Window", "WindowProxy", "connect_to_host", "serve_frame"]
