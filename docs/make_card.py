"""Draws docs/assets/card.png: the picture that shows when a link to the documentation is passed on.

``python docs/make_card.py`` draws it as SVG and has Chromium make pixels of it: where links are shown, SVG is not. The file
says of which drawing it was made, so that a test can tell whether that is still the drawing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path
from xml.sax.saxutils import escape

CARD = Path(__file__).parent / "assets" / "card.png"
LOGO = Path(__file__).parent / "assets" / "logo.svg"
WIDTH, HEIGHT = 1200, 630
KEY = b"Source"
CODE = (
    ('@bus.handle("greet")', "#9adcd2"),
    ("async def greet(name: str) -> str:", "#e6f1f1"),
    ('    return f"Hello, {name}"', "#e6f1f1"),
    ("", ""),
    ('print(await bus.request("greet", "Ann"))', "#fbbf24"),
)
FACTS = "asks · publishes · streams · over the protocol and the transport that a URL names"


def draw() -> str:
    """The card as SVG."""
    mono = 'font-family="\'DejaVu Sans Mono\', monospace" font-size="30" xml:space="preserve"'
    sans = "font-family=\"'DejaVu Sans', sans-serif\""
    logo = LOGO.read_text(encoding="utf-8").replace("<svg ", '<svg x="80" y="66" width="104" height="104" ', 1)
    lines = [
        f'<text x="120" y="{308 + 46 * row}" {mono} fill="{colour}">{escape(line)}</text>'
        for row, (line, colour) in enumerate(CODE)
        if line
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#0e191c"/>',
            logo,
            f'<text x="216" y="120" {sans} font-size="64" font-weight="700" fill="#ffffff">polybus</text>',
            f'<text x="216" y="166" {sans} font-size="28" fill="#a9bdc0">One bus for programs that talk to each other</text>',
            '<rect x="80" y="240" width="1040" height="290" rx="14" fill="#16252a" stroke="#2a3d42" stroke-width="2"/>',
            *lines,
            f'<text x="80" y="588" {sans} font-size="24" fill="#a9bdc0">{FACTS}</text>',
            "</svg>",
        )
    )


def drawing_of(png: bytes) -> str:
    """The digest of the drawing of which a picture was made; nothing where it does not say."""
    place = 8
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        if kind == b"tEXt" and png[place + 8 :].startswith(KEY + b"\0"):
            return png[place + 8 + len(KEY) + 1 : place + 8 + size].decode("latin-1")
        place += size + 12
    return ""


def digest(drawing: str) -> str:
    """What the picture says of its drawing."""
    return hashlib.sha256(drawing.encode()).hexdigest()


def _with_source(png: bytes, drawing: str) -> bytes:
    body = b"tEXt" + KEY + b"\0" + digest(drawing).encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    end = png.rindex(b"IEND") - 4
    return png[:end] + chunk + png[end:]


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if program is None:
        raise SystemExit("chromium is not installed: make web")
    drawing = draw()
    with tempfile.TemporaryDirectory() as folder:
        (source := Path(folder, "card.html")).write_text(f"<body style='margin:0'>{drawing}</body>", encoding="utf-8")
        made = Path(folder, "card.png")
        command = [program, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        if os.name == "posix" and os.geteuid() == 0:
            command.append("--no-sandbox")
        command += [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={made}", source.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        CARD.write_bytes(_with_source(made.read_bytes(), drawing))


if __name__ == "__main__":
    main()
