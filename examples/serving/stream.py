"""Prints requests that generate at the same time: a line for every few words, labelled with its step and request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from textwrap import shorten

from serving.scheduler import Request

WIDTH = 60  # characters of text after which a line is printed
SPLIT = "\N{REPLACEMENT CHARACTER}"  # what part of a character decodes to


class Stream:
    """Prints the text of every request in pieces, as its tokens come."""

    def __init__(self, prompts: Sequence[str], decode: Callable[[list[int]], str]) -> None:
        self._prompts, self._decode = prompts, decode
        self._printed: Counter[int] = Counter()  # how many tokens of each request
        print(" step  request")

    def arrived(self, step: int, request: Request) -> None:
        """Announce a request."""
        prompt = shorten(self._prompts[request.number], WIDTH, placeholder=" …")
        _line(step, request, f"+ {prompt} ({len(request.prompt)} tokens)")

    def extended(self, step: int, request: Request) -> None:
        """Take note of a new token; print when the tokens fill a line and when the last one is there."""
        text = self._decode(request.generated[self._printed[request.number] :])
        if request.finished or (len(text) >= WIDTH and not text.endswith(SPLIT)):
            self._printed[request.number] = len(request.generated)
            if text:  # the last token alone may be one that is not shown
                _line(step, request, "  " + text.replace("\n", "⏎"))
        if request.finished:
            _line(step, request, f"- {len(request.generated)} tokens")


def _line(step: int, request: Request, text: str) -> None:
    print(f"{step:5} {request.number:4}  {text}", flush=True)
