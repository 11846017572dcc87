"""Nesting that exhausts the interpreter's stack, told as a mistake of the variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from attngen.errors import AttnError, Diagnostic, Span


@contextmanager
def limited_depth(span: Span, sources: Mapping[str, str]) -> Iterator[None]:
    """Report `nesting-too-deep` at that place where the work inside runs out of stack."""
    try:
        yield
    except RecursionError:
        message = "expressions, with the functions that they call, are nested too deep"
        diagnostic = Diagnostic("nesting-too-deep", message, span, "give parts of them names, or call fewer functions")
        raise AttnError((diagnostic,), dict(sources)) from None
