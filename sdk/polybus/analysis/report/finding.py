"""A sentence of the verdict."""

from __future__ import annotations

import attrs


@attrs.frozen
class Finding:
    """A sentence of the verdict, and the place of its evidence."""

    about: str
    """fine, failed, missing, slow, new, better, same, broke, unheard, unseen, places or clocks."""
    text: str
    section: str
    """Title of the section of the report that leads to it."""
