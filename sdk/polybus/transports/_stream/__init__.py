"""Byte-stream connections: wires, their drivers, framing, dialling and listening."""
