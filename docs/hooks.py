"""What the site makes of a page besides Markdown: help texts, links out of docs/, without the lines that readers
of a checkout. And quotes of source files.

MkDocs calls `on_page_markdown`. Whatever cannot be resolved raises, so the strict build fails. A quote stands in the
page as plain Markdown, below a comment that names its source; tests/test_docs.py holds the two equal, and

    python docs/hooks.py

brings the quotes of all pages up to date.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
QUOTE = re.compile(r"^(<!-- shown: quoted from (\S+), ([\w.]+) -->\n```python\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
HELP = re.compile(r"^--8<-- `(quire [^`]*)`$", re.MULTILINE)
CHECKOUT = re.compile(r"^In a checkout .*`make docs` puts here\.\n\n(?=::: )", re.MULTILINE)
UPWARD = re.compile(r"\]\((\.\./[^)#]*)(#[^)]*)?\)")


def part_of(file: str, name: str) -> str:
    """The source of a function or class of a Python file, such as `Engine.step`."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found: Any = ast.parse(text)
    for word in name.split("."):
        found = next(node for node in found.body if getattr(node, "name", None) == word)
    first = min([found.lineno, *(mark.lineno for mark in found.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : found.end_lineno]))


def with_quotes(markdown: str) -> str:
    """The page with every quote as its source is now."""
    return QUOTE.sub(lambda quote: f"{quote[1]}{part_of(quote[2], quote[3])}\n{quote[5]}", markdown)


def help_of(command: str) -> str:
    """What `quire TOOL --help` prints."""
    from quire.cli import main as cli

    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}  # the same page wherever it is built
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main(command.split()[1:])
    if not out.getvalue().startswith("usage:"):
        raise ValueError(f"{command} printed no help")
    return out.getvalue().rstrip()


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Help texts filled in; links to files outside docs/ lead to the repository; no word of what was filled in."""

    def outward(link: re.Match[str]) -> str:
        target = (Path(page.file.abs_src_path).parent / link[1]).resolve()
        if DOCS in target.parents:
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {link[1]}")
        return f"]({config['repo_url'].rstrip('/')}/blob/HEAD/{target.relative_to(ROOT).as_posix()}{link[2] or ''})"

    markdown = UPWARD.sub(outward, CHECKOUT.sub("", markdown))
    return HELP.sub(lambda quote: help_of(quote[1]), markdown)


if __name__ == "__main__":
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := with_quotes(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: quotes brought up to date")
