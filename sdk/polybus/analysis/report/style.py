"""The look of the report, light and dark, on a screen, a phone and paper."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --text: #1d2129; --quiet: #5b6270; --back: #fff; --line: #e4e4e8; --link: #2f6fb3;
  --bad: #b3261e; --warn: #8a5a00; --good: #1e7a3c; --soft: #f3f4f7; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e5ea; --quiet: #a3a9b5; --back: #16181d; --line: #363b45;
  --link: #7fb4ee; --bad: #ff8a80; --warn: #f0bd62; --good: #76d396; --soft: #20242c; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 0 1rem 4rem;
  color: var(--text); background: var(--back); }
h1 { font-size: 1.5rem; margin: 1rem 0 0; overflow-wrap: anywhere; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.2rem; }
h3 { font-size: 1rem; } a { color: var(--link); } section, tbody { scroll-margin-top: 4.6rem; }
nav { position: sticky; top: 0; background: var(--back); padding: .5rem 0; overflow-x: auto; white-space: nowrap;
  border-bottom: 1px solid var(--line); z-index: 1; }
@media (min-width: 50rem) { nav { white-space: normal; } }
nav a { margin-right: .9rem; text-decoration: none; }
#filter { display: flex; flex-wrap: wrap; gap: .4rem .8rem; align-items: end; padding: .6rem 0; font-size: .85rem; }
#filter[hidden], [hidden] { display: none; }
#filter label { color: var(--quiet); display: flex; flex-direction: column; flex: 1 1 8rem; min-width: 0; max-width: 13rem; }
#filter input, #filter select, #filter button { font: inherit; color: var(--text); background: var(--soft); min-width: 0;
  border: 1px solid var(--line); border-radius: .3rem; padding: .2rem .4rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.4rem, 1fr)); gap: .5rem; }
.tile { border: 1px solid var(--line); border-radius: .4rem; padding: .45rem .6rem; min-width: 0; overflow-wrap: anywhere; }
.wide { grid-column: span 2; }
.tile b { display: block; font-size: 1.15rem; }
.tile span { color: var(--quiet); font-size: .85rem; }
.verdict { list-style: none; padding: 0; } .verdict li { margin: .35rem 0; overflow-wrap: anywhere; }
.verdict b { display: inline-block; min-width: 4.6rem; }
.failed b, .missing b { color: var(--bad); } .slow b, .unseen b, .broke b { color: var(--warn); }
.fine b, .better b, .same b { color: var(--good); } .new b { color: var(--link); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number, td.duration { font-variant-numeric: tabular-nums; }
td.text { max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
.head th { font-weight: normal; padding-top: .9rem; white-space: normal; overflow-wrap: anywhere; }
code { font-size: .8rem; user-select: all; color: var(--quiet); overflow-wrap: anywhere; }
tbody:target .head, details:target > summary { background: var(--soft); }
details { border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .7rem; margin: .5rem 0; }
p { overflow-wrap: anywhere; }
summary { cursor: pointer; overflow-wrap: anywhere; } details details { border: 0; padding: .4rem 0; margin: 0; }
@media (max-width: 50rem) { .hops td:nth-child(2) { white-space: normal; } }
.bar { width: 40%; min-width: 8rem; } .bar i { display: block; height: .7rem; min-width: 2px; border-radius: 2px;
  background: var(--link); } .bar i.bad { background: var(--bad); } .bar i.open { opacity: .45; }
svg { width: 100%; max-width: 36rem; height: auto; display: block; margin: .6rem 0; }
svg.sequence { max-width: none; font: 11px system-ui, sans-serif; fill: var(--text); }
svg.sequence line { stroke: var(--quiet); } svg.sequence .lane { stroke: var(--line); }
svg.sequence .carries { stroke-dasharray: 3 3; } svg.sequence .quiet { fill: var(--quiet); }
@media print { nav, #filter { display: none; } }
"""
