"""What a compiler's log says about a variant: `#line` has mapped its messages to the .attn file already."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# file:12:3: error: text   (g++)      file(12): error: text   (nvcc)      file(12): error #20: text
_GCC: Final = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<message>.*)$")
_NVCC: Final = re.compile(r"^(?P<file>[^(\n]+)\((?P<line>\d+)\): (?:\w+ )?error(?: #[\w-]+)?: (?P<message>.*)$")


@dataclass(frozen=True, slots=True)
class CompilerError:
    """One error of a compiler and where it is, which is a line of the variant where the generated text named one."""

    file: str
    line: int
    message: str

    @property
    def in_variant(self) -> bool:
        """Whether the error lies in a variant and not in the code around it."""
        return self.file.endswith(".attn")


def compiler_errors(log: str) -> tuple[CompilerError, ...]:
    """The errors of a g++ or nvcc log, those inside a variant first, each once.

    >>> compiler_errors("gemma2.attn:7:12: error: no match\\nx.hpp(3): error: expected a ';'")[0]
    CompilerError(file='gemma2.attn', line=7, message='no match')
    """
    found: dict[CompilerError, None] = {}
    for text in log.splitlines():
        if match := _GCC.match(text) or _NVCC.match(text):
            found[CompilerError(match["file"].strip(), int(match["line"]), match["message"])] = None
    return tuple(sorted(found, key=lambda error: not error.in_variant))
