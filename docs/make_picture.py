"""Draws docs/picture.svg: protocols, transports, nesting and recording; which there are, the package itself says.

``python docs/make_picture.py`` writes the file; a test compares it with what this would draw.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from polybus.plugins.registry import _PROTOCOLS, _TRANSPORTS

PICTURE = Path(__file__).with_name("picture.svg")
WIDTH, HEIGHT = 860, 546
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2933; text-anchor: middle }
  .small { font-size: 12px; fill: #52606d }
  .left { text-anchor: start }
  .head { font-weight: 600; font-size: 13.5px }
  rect { rx: 8px; stroke-width: 1.5px }
  .page { fill: #ffffff; stroke: none }
  .bus { fill: #e3f2ec; stroke: #2f855a }
  .protocol { fill: #e6effa; stroke: #2b6cb0 }
  .transport { fill: #fbf0e1; stroke: #b7791f }
  .record { fill: #f3e8f7; stroke: #7e4a9e }
  .floor { fill: none; stroke: #cbd2d9; stroke-width: 1px }
  path { fill: none; stroke: #7b8794; stroke-width: 1.5px; marker-end: url(#tip) }
  marker path { fill: #7b8794; stroke: none }
"""
PROTOCOLS = {"ubre": "UBRE", "csb": "CSB", "jrep": "J.REP", "uprotocol": "uProtocol", "nats": "NATS"}
TRANSPORTS = {
    "memory": "memory",
    "tcp": "TCP, TLS",
    "unix": "Unix socket",
    "ws": "WebSocket",
    "http": "HTTP",
}


def box(x: float, y: float, width: float, height: float, kind: str, *lines: str) -> str:
    """A box with centred lines; the first one is the heading."""
    middle = y + height / 2 - 8.5 * (len(lines) - 1) + 5
    centre = f"{x + width / 2:g}"
    texts = [
        f'<text x="{centre}" y="{middle + 17 * number:g}" class="{"small" if number else "head"}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"/>'
    return "\n".join((shape, *texts))


def row(y: float, kind: str, boxes: list[tuple[str, str]]) -> list[str]:
    """Boxes of equal width, side by side."""
    width = (WIDTH - 190 - 12 * (len(boxes) - 1)) / len(boxes)
    return [box(170 + number * (width + 12), y, width, 52, kind, name, note) for number, (name, note) in enumerate(boxes)]


def label(y: float, text: str, note: str) -> str:
    """What stands before a row."""
    return (
        f'<text x="20" y="{y:g}" class="head left">{escape(text)}</text>'
        f'<text x="20" y="{y + 18:g}" class="small left">{escape(note)}</text>'
    )


def draw() -> str:
    """The whole picture."""
    protocols = [(name, f"{word}+") for word, name in PROTOCOLS.items() if word in _PROTOCOLS]
    transports = [(name, f"{word}://") for word, name in TRANSPORTS.items() if word in _TRANSPORTS]
    transports.append(("port", "in a browser"))
    parts = [
        f'<rect x="0" y="0" width="{WIDTH}" height="{HEIGHT}" class="page"/>',
        label(48, "Your program", "handlers, four verbs"),
        box(170, 20, 670, 64, "bus", "Bus", "publish · subscribe · request · handle · stream · channel · notify"),
        '<path d="M505 84 V112"/>',
        label(138, "Protocols", "frames ↔ messages"),
        *row(118, "protocol", protocols),
        '<path d="M505 170 V198"/>',
        label(224, "Transports", "move whole frames"),
        *row(204, "transport", transports),
        '<path d="M505 256 V284"/>',
        label(312, "Nesting", "a bus is a transport"),
        box(170, 290, 213, 70, "bus", "Bridge", "bus ↔ bus of another", "protocol, by routes"),
        box(399, 290, 213, 70, "bus", "Tunnel", "any protocol through", "any other"),
        box(628, 290, 212, 70, "bus", "CSB broker", "clients ↔ servers,", "bodies untouched"),
        label(404, "Recording", "both directions"),
        box(170, 382, 213, 70, "record", "Recorder", "every frame of every link,", "secrets blanked"),
        box(399, 382, 213, 70, "record", "Replay", "the same exchanges", "against another server"),
        box(628, 382, 212, 70, "record", "Pipeline on Spark", "tables, metrics,", "a report"),
        label(496, "At the other end", "one URL says it all"),
        box(
            170,
            474,
            670,
            52,
            "floor",
            "polybus, or a bare peer of that protocol",
            "protocol+transport://address, for example ubre+ws://host/bus",
        ),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        'aria-label="A bus stands on protocols, these on transports; a bus can be a transport; what passes can be recorded">'
    )
    size = 'refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
    tip = f'<defs><marker id="tip" viewBox="0 0 8 8" {size}><path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    return "\n".join((head, f"<style>{STYLE}</style>", tip, *parts, "</svg>", ""))


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
