"""The command line: `attngen check | show | build | run | bench | cache | doctor`."""

from __future__ import annotations

from attngen.cli.main import main

__all__ = ["main"]
