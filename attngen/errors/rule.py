"""The form of a row of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the catalogue: what the id means, an example that triggers it, and how to mend it."""

    meaning: str
    example: str
    cure: str
