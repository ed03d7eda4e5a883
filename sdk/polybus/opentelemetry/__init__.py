"""Traces and metrics of a bus for OpenTelemetry: ``instrument(bus)``. Needs ``pip install 'polybus[opentelemetry]'``.

Source of the names: OpenTelemetry semantic conventions 1.44, "RPC" and "Messaging".
"""

from .instrumentation import instrument

__all__ = ["instrument"]
