"""The language: text to syntax tree.  Knows spelling and files; meaning is the business of attngen.ir."""

from attngen.dsl.modules import parse_module, prelude_names
from attngen.dsl.parser import parse
from attngen.dsl.unparse import unparse

__all__ = ["parse", "parse_module", "prelude_names", "unparse"]
