"""Connections over streams of bytes: wires, their drivers, framing, dialling and listening."""
