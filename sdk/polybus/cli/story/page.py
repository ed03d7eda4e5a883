"""The story as a page: one file, which needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ...demo.story.programs import PROGRAMS, Excerpt, text_of
from ...demo.story.scenes import SCENES, Scene, Telling
from .frames import Recorder

SAYS = (
    "Two programs in nine scenes: they meet, one asks, publications reach both desks, a stream is held back, a mistake is "
    "refused with its place, the server is killed and the caller told at once, it returns with its subscriptions, it is "
    "replaced without a failure, and all was recorded."
)
_STYLE = """
:root{color-scheme:light dark;--ink:#17262a;--soft:#f1f6f5;--line:#c9d6d6;--dim:#5b6c70;--green:#0b6e69;--red:#c0261b;
--page:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#dbe7e8;--soft:#152529;--line:#2a3d42;--dim:#8fa5a9;--green:#5cd3c4;--red:#ff8a80;
--page:#0e191c}}
*{box-sizing:border-box}
body{background:var(--page);color:var(--ink);font:16px/1.55 system-ui,sans-serif;margin:0 auto;max-width:46rem;
padding:1.5rem 1rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .3em}h2{font-size:1.1rem;margin:2.2em 0 .2em}p{margin:.3em 0}
svg{display:block;height:auto;margin:1.2rem auto;max-width:100%}
pre{background:var(--soft);border:1px solid var(--line);border-radius:6px;font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace;
margin:.6em 0;overflow-x:auto;padding:.7em .9em}
.seen{color:var(--green);font-weight:600;overflow-wrap:anywhere}.failed{color:var(--red)}.dim,dt{color:var(--dim)}
dl{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fit,minmax(6.5rem,1fr))}dd{font-size:1.3rem;margin:0}
summary{cursor:pointer;font-weight:600;margin-top:1.2em}
"""


def page(telling: Telling, recorder: Recorder) -> str:
    """The page of a story that has been told, and recorded."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>polybus demo</title><style>{_STYLE}</style></head><body>",
            "<h1>Two programs, told by themselves</h1>",
            f'<p class="dim">polybus demo: real processes, real sockets, {telling.seconds:.0f} seconds.</p>',
            recorder.svg(SAYS),
            *_traffic(telling),
            *(part for scene in SCENES for part in _scene(scene, telling)),
            "<h2>The programs</h2>",
            *(f"<details><summary>{name}.py</summary>{_code(text_of(name))}</details>" for name in PROGRAMS),
            "</body></html>",
            "",
        )
    )


def _scene(scene: Scene, telling: Telling) -> Iterator[str]:
    step = telling.run.steps[scene.name]
    yield f"<h2>{SCENES.index(scene) + 1}. {escape(scene.title)}</h2><p>{escape(scene.why)}</p>"
    yield from (_excerpt(excerpt) for excerpt in scene.code)
    if step.detail:
        kind = "seen failed" if step.outcome == "failed" else "seen"
        yield f'<p class="{kind}">{escape(step.detail)}</p>'
    if scene.elsewhere:
        yield f'<p class="dim">{escape(scene.elsewhere)}</p>'


def _excerpt(excerpt: Excerpt) -> str:
    return _code(f"# {excerpt.program}.py\n{excerpt.code}")


def _code(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def _traffic(telling: Telling) -> Iterator[str]:
    if telling.traffic:
        cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{number:,}</dd></div>" for name, number in telling.traffic.items())
        yield f"<dl>{cells}</dl>"
