"""Draws docs/picture.svg: a message between two programs; which protocols and transports there are, the package says.

``python docs/make_picture.py`` writes the file; a test compares it with what this would draw.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from polybus.plugins.registry import _PROTOCOLS, _TRANSPORTS

PICTURE = Path(__file__).with_name("picture.svg")
WIDTH, HEIGHT = 440, 690
LEFT, RIGHT, COLUMN = 12, 266, 162
HIGH, GAP, TOP = 56, 28, 40
# Narrow, so that letters are still ten pixels high on a telephone; its own ground, light or dark as the page around it.
STYLE = """
  svg { color-scheme: light dark }
  text { font: 13px system-ui, sans-serif; fill: #1f2f33; text-anchor: middle }
  .head { font-weight: 600; font-size: 14px }
  .title { font-weight: 600; font-size: 14.5px; text-anchor: start }
  .left { text-anchor: start }
  .note { font-size: 12.5px; fill: #4d6166 }
  .code { font: 600 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
  .page { fill: #ffffff; stroke: #d6e0e0 }
  rect { stroke-width: 1.5px }
  .yours { fill: #f6f8f8; stroke: #6b8286 }
  .bus { fill: #e0f2ef; stroke: #0b6e69 }
  .protocol { fill: #e6effa; stroke: #2b6cb0 }
  .transport { fill: #fbf0e1; stroke: #b7791f }
  .record { fill: #f3e8f7; stroke: #7e4a9e }
  path { fill: none; stroke-width: 2.5px; stroke-linejoin: round }
  .ask { stroke: #0b6e69 }
  .answer { stroke: #c2570c }
  .tap { stroke: #7e4a9e; stroke-width: 1.5px; stroke-dasharray: 3 3 }
  .route { stroke: #6b8286; stroke-width: 1.5px }
  .tip-ask { fill: #0b6e69 } .tip-answer { fill: #c2570c } .tip-route { fill: #6b8286 }
  .said-ask { fill: #0b6e69; font-weight: 600 } .said-answer { fill: #b0480a; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e3eeee }
    .note { fill: #a9bdc0 }
    .page { fill: #111f23; stroke: #2a3d42 }
    .yours { fill: #1b2b30; stroke: #7f979b }
    .bus { fill: #0f3b39; stroke: #4fc9ba }
    .protocol { fill: #173150; stroke: #7ab0ee }
    .transport { fill: #3d2e12; stroke: #e3ab4d }
    .record { fill: #35213f; stroke: #c795e3 }
    .ask { stroke: #4fc9ba } .tip-ask { fill: #4fc9ba } .said-ask { fill: #62d9ca }
    .answer { stroke: #f59e4c } .tip-answer { fill: #f59e4c } .said-answer { fill: #f8ad66 }
    .tap { stroke: #c795e3 }
    .route { stroke: #9db3b7 } .tip-route { fill: #9db3b7 }
  }
"""
LAYERS = (
    ("yours", "your code", ('bus.request("level")', "asks"), ('@bus.handle("level")', "answers 10.5")),
    ("bus", "bus", ("Bus", "deadline, outbox"), ("Bus", "who may, limits")),
    ("protocol", "protocol", ("UBRE", "message → frame"), ("UBRE", "frame → message")),
    ("transport", "transport", ("WebSocket", "frame → bytes"), ("WebSocket", "bytes → frame")),
)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """One line."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, *lines: str) -> str:
    """A box with centred lines; the first one is the heading."""
    first = y + height / 2 - 9.5 * (len(lines) - 1) + 5
    heads = "code" if kind == "yours" else "head"
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="{kind}"/>'
    return "\n".join(
        (shape, *(text(x + width / 2, first + 19 * row, line, "note" if row else heads) for row, line in enumerate(lines)))
    )


def tip(x: float, y: float, way: str, kind: str) -> str:
    """The head of an arrow, at this point."""
    points = {"down": "-5,-8 5,-8 0,0", "up": "-5,8 5,8 0,0", "right": "-8,-5 -8,5 0,0", "left": "8,-5 8,5 0,0"}[way]
    return f'<polygon points="{points}" transform="translate({x:g} {y:g})" class="tip-{kind}"/>'


def conversation() -> list[str]:
    """Two programs, layer by layer, and what goes down on one side and up on the other."""
    rows = [TOP + row * (HIGH + GAP) for row in range(len(LAYERS))]
    end = rows[-1] + HIGH
    out, back = end + 50, end + 26
    parts = [
        text(LEFT + COLUMN / 2, 28, "One program", "head"),
        text(RIGHT + COLUMN / 2, 28, "Another program", "head"),
        f'<path d="M{LEFT + 52} {TOP} V{out} H{RIGHT + 110} V{TOP + HIGH}" class="ask"/>',
        f'<path d="M{RIGHT + 52} {TOP} V{back} H{LEFT + 110} V{TOP + HIGH}" class="answer"/>',
    ]
    for y, (kind, layer, one, other) in zip(rows, LAYERS, strict=True):
        parts += [box(LEFT, y, COLUMN, HIGH, kind, *one), box(RIGHT, y, COLUMN, HIGH, kind, *other)]
        parts.append(text(WIDTH / 2, y + HIGH / 2 + 5, layer, "note"))
    for y in (row + HIGH for row in rows[:-1]):
        parts += [tip(LEFT + 52, y + GAP - 4, "down", "ask"), tip(LEFT + 110, y + 4, "up", "answer")]
        parts += [tip(RIGHT + 110, y + 4, "up", "ask"), tip(RIGHT + 52, y + GAP - 4, "down", "answer")]
    parts += [
        tip(RIGHT + 20, out, "right", "ask"),
        text(LEFT + 128, out + 18, "the request, as bytes", "said-ask"),
        tip(LEFT + COLUMN - 4, back, "left", "answer"),
        text(WIDTH / 2, back - 7, "its answer", "said-answer"),
        # The recorder listens where frames are whole: between protocol and transport.
        f'<path d="M{LEFT + 52} {rows[3] - GAP / 2} H{RIGHT + 110}" class="tap"/>',
        box(WIDTH / 2 - 42, rows[3] - GAP / 2 - 12, 84, 24, "record", "recorder"),
    ]
    return parts


def draw() -> str:
    """The whole picture."""
    y = 462
    protocols = " · ".join(word for word in _PROTOCOLS)
    secure = {f"{word}s" for word in _TRANSPORTS}
    transports = " · ".join(f"{word}(s)" if f"{word}s" in _TRANSPORTS else word for word in _TRANSPORTS if word not in secure)
    parts = [
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="12" class="page"/>',
        *conversation(),
        text(LEFT + 4, y, "A tunnel: one link inside another", "title"),
        box(LEFT, y + 12, WIDTH - 2 * LEFT, 62, "protocol"),
        text(WIDTH / 2, y + 31, "UBRE over WebSocket", "note"),
        box(LEFT + 56, y + 39, WIDTH - 2 * LEFT - 112, 27, "bus", "CSB, end to end"),
        text(LEFT + 4, y + 102, "A bridge: two buses, joined by routes", "title"),
        box(LEFT, y + 114, 118, 44, "bus", "Bus", "J.REP"),
        box(WIDTH - LEFT - 118, y + 114, 118, 44, "bus", "Bus", "uProtocol"),
        f'<path d="M138 {y + 136} H302" class="route"/>',
        tip(302, y + 136, "right", "route"),
        tip(138, y + 136, "left", "route"),
        text(WIDTH / 2, y + 129, "door.> ↔ vehicle.door.>", "note"),
        text(LEFT + 4, y + 188, "protocols", "head left"),
        text(LEFT + 92, y + 188, protocols, "note left"),
        text(LEFT + 4, y + 210, "transports", "head left"),
        text(LEFT + 92, y + 210, f"{transports} · port", "note left"),
    ]
    says = (
        "A request goes from a program down through bus, protocol and transport, over the wire and up to the handler of "
        "another; its answer comes back the same way. A recorder takes frames between protocol and transport. "
        "A tunnel is a link inside another, a bridge joins two buses."
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(says)}">'
    )
    return "\n".join((head, f"<style>{STYLE}</style>", *parts, "</svg>", ""))


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
