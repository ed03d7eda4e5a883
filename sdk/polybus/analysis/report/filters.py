"""The filters of the report: a small script, without which all rows are shown."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from typing import Final

SCRIPT: Final = """
(() => {
  const form = document.getElementById('filter')
  const told = form.querySelector('output')
  const named = ['subject', 'peer', 'outcome']
  const value = (name) => form.elements[name].value.trim().toLowerCase()
  const moment = (name) => form.elements[name].value ? Date.parse(form.elements[name].value + 'Z') : NaN
  const fits = (data) => {
    for (const name of named) {
      const wanted = value(name)
      if (!wanted || data[name] === undefined) continue
      const given = data[name].toLowerCase()
      if (name === 'outcome' ? given !== wanted : !given.includes(wanted)) return false
    }
    if (data.time === undefined) return true
    return !(Number(data.time) < moment('from')) && !(Number(data.time) > moment('to'))
  }
  const show = () => {
    let shown = 0, all = 0
    for (const row of document.querySelectorAll('[data-subject], [data-peer], [data-outcome], [data-time]')) {
      row.hidden = !fits(row.dataset)
      all += 1
      shown += !row.hidden
    }
    for (const group of document.querySelectorAll('table.groups tbody'))
      group.hidden = !group.querySelector('tr[data-subject]:not([hidden])')
    told.textContent = shown === all ? '' : shown.toLocaleString('en') + ' of ' + all.toLocaleString('en') + ' rows'
  }
  form.addEventListener('input', show)
  form.addEventListener('submit', (event) => event.preventDefault())
  form.addEventListener('reset', () => setTimeout(show))
  form.hidden = false
  show()
})()
"""
SOURCE: Final = "'sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode() + "'"
"""The script as a source of the page's Content-Security-Policy, so that no other one runs."""


def form(outcomes: Iterable[str]) -> str:
    """The fields. They are hidden as long as no script makes use of them."""
    options = "".join(f"<option>{escape(name)}</option>" for name in outcomes)
    times = "".join(
        f'<label>{name}, UTC <input type="datetime-local" step="1" name="{name}"></label>' for name in ("from", "to")
    )
    return (
        '<form id="filter" hidden><label>subject <input name="subject" autocomplete="off"></label>'
        '<label>peer <input name="peer" autocomplete="off"></label>'
        f'<label>outcome <select name="outcome"><option></option>{options}</select></label>{times}'
        '<button type="reset">all</button> <output></output></form>'
    )
