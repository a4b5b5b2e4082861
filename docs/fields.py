"""Comments behind fields become their words in the reference: a field's meaning stands there, once, in the source.

Loaded by mkdocstrings (griffe) as an extension; knows nothing of pages.
"""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

import griffe


@cache
def comments(path: Path) -> dict[int, str]:
    """The comment of each line that has one behind code."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        words = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and lines[line - 1].split("#")[0].strip() and not words.startswith("noqa"):
            found[line] = words[0].upper() + words[1:] + "."
    return found


class FieldComments(griffe.Extension):
    """A field without a docstring takes the comment behind it."""

    def on_attribute_instance(self, *, node: ast.AST | Any, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and attr.lineno is not None and isinstance(attr.filepath, Path):
            words = comments(attr.filepath).get(attr.lineno)
            if words is not None and not attr.name.startswith("_"):
                attr.docstring = griffe.Docstring(words, parent=attr, lineno=attr.lineno)
