"""Fills templates.  They only name and instantiate: every value is C++ text before it gets here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

HERE: Final = "#line @"  # a line that maps back to the generated file itself


@cache
def _environment() -> Environment:
    loader = PackageLoader("attngen.codegen", "templates")
    return Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )


def render(template: str, file: str, values: Mapping[str, object]) -> str:
    """The text of a template; `#line @` becomes the line number that follows it in `file`."""
    text = _environment().get_template(template).render(values)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line == HERE:
            lines[number] = f'#line {number + 2} "{file}"'
    return "\n".join(lines)
