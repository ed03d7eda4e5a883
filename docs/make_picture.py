"""Draws docs/picture.svg: protocols, transports and nesting. What is not there yet is dashed: the package itself is asked.

``python docs/make_picture.py`` writes the file; a test compares it with what this would draw.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

from polybus.urls import _PROTOCOLS, _TRANSPORTS

PICTURE = Path(__file__).with_name("picture.svg")
WIDTH, HEIGHT = 860, 470
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
  .coming { fill: #f7f7f7; stroke: #9aa5b1; stroke-dasharray: 5 4 }
  .floor { fill: none; stroke: #cbd2d9; stroke-width: 1px }
  path { fill: none; stroke: #7b8794; stroke-width: 1.5px; marker-end: url(#tip) }
  marker path { fill: #7b8794; stroke: none }
"""
PROTOCOLS = {"ubre": "UBRE", "csb": "CSB", "jrep": "J.REP", "uprotocol": "uProtocol"}
TRANSPORTS = {
    "memory": ("memory", "memory"),
    "tcp": ("TCP, TLS", "tcp"),
    "unix": ("Unix socket", "unix"),
    "ws": ("WebSocket", "ws"),
    "http": ("HTTP", "http"),
    "postmessage": ("iframe port", "postmessage"),
}


def there(name: str) -> bool:
    """Whether polybus has a module of this name."""
    try:
        return find_spec(f"polybus.{name}") is not None
    except ModuleNotFoundError:
        return False


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


def row(y: float, kind: str, boxes: list[tuple[str, str, bool]]) -> list[str]:
    """Boxes of equal width, side by side; those that are not there are dashed."""
    width = (WIDTH - 190 - 12 * (len(boxes) - 1)) / len(boxes)
    return [
        box(170 + number * (width + 12), y, width, 52, kind if exists else "coming", name, note)
        for number, (name, note, exists) in enumerate(boxes)
    ]


def label(y: float, text: str, note: str) -> str:
    """What stands before a row."""
    return (
        f'<text x="20" y="{y:g}" class="head left">{escape(text)}</text>'
        f'<text x="20" y="{y + 18:g}" class="small left">{escape(note)}</text>'
    )


def draw() -> str:
    """The whole picture."""
    protocols = [(name, f"{word}+", word in _PROTOCOLS) for word, name in PROTOCOLS.items()]
    transports = [
        (name, "in a browser" if word == "postmessage" else f"{word}://", word in _TRANSPORTS or there(f"transports.{word}"))
        for word, (name, _) in TRANSPORTS.items()
    ]
    bridge, tunnel = there("gateway"), there("tunnel")
    broker = there("broker")
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
        box(170, 290, 213, 70, "bus" if bridge else "coming", "Bridge", "bus ↔ bus of another", "protocol, by routes"),
        box(399, 290, 213, 70, "bus" if tunnel else "coming", "Tunnel", "any protocol through", "any other"),
        box(628, 290, 212, 70, "bus" if broker else "coming", "CSB broker", "clients ↔ servers,", "bodies untouched"),
        label(404, "At the other end", "one URL says it all"),
        box(
            170,
            382,
            670,
            52,
            "floor",
            "polybus, or a bare peer of that protocol",
            "protocol+transport://address, for example ubre+ws://host/bus",
        ),
        f'<text x="{WIDTH - 20}" y="{HEIGHT - 12}" class="small" style="text-anchor: end">dashed: not there yet</text>',
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        'aria-label="A bus stands on protocols, these on transports; a bus can itself be a transport">'
    )
    size = 'refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
    tip = f'<defs><marker id="tip" viewBox="0 0 8 8" {size}><path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    return "\n".join((head, f"<style>{STYLE}</style>", tip, *parts, "</svg>", ""))


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
