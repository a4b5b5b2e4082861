"""README and docs: what is marked `run` runs and prints what the page shows; links, anchors and quoted parts resolve.

A mark is a comment in the line before a block: `<!-- run -->`, `<!-- run: needs zmq, msgspec -->`, `<!-- prints -->`
for what the block before it printed, `<!-- shown: why -->` for one that is not run. The blocks of a page share names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from quire.cli import main as cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"])
FENCE = re.compile(r"^( *)```(\w*)\s*$")
MARK = re.compile(r"^ *<!-- (run|prints|shown)(?:: (?:needs )?(.*))? -->$")
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block of a page."""

    line: int
    language: str
    mark: str  # run, prints, shown or none
    words: str  # behind the mark
    text: str


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    first: int | None = None
    mark, words, language, indent = "", "", "", 0
    for number, line in enumerate(lines):
        found = FENCE.match(line)
        if found is None:
            continue
        if first is None:
            first, indent, language = number, len(found[1]), found[2]
            marked = MARK.match(lines[number - 1]) if number else None
            mark, words = (marked[1], marked[2] or "") if marked else ("", "")
        else:
            text = "".join(f"{body[indent:]}\n" for body in lines[first + 1 : number])
            yield Block(first + 1, language, mark, words, text)
            first = None
    assert first is None, f"{name_of(page)}:{first}: a block that does not end"


def lacking(needs: str) -> list[str]:
    return [name for name in re.findall(r"\w+", needs) if importlib.util.find_spec(name) is None]


def squeezed(text: str) -> list[str]:
    """Lines without their spacing: tables are drawn with rich or without it."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def run_commands(text: str) -> None:
    """Every command of a console block; the lines below it are among those it prints, in that order."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        words = shlex.split(command, comments=True)
        if words[0] == "quire":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                assert cli.main(words[1:]) == 0, command
            printed = iter(squeezed(out.getvalue()))
        else:
            assert words[0] == "python", command
            ran = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=240)
            assert ran.returncode == 0, ran.stderr
            printed = iter(squeezed(ran.stdout))
        assert [line for line in squeezed(shown) if line != "..." and line not in printed] == []


def run_page(page: Path) -> list[str]:
    """Run what is marked; returns what was left out, and why."""
    names: dict[str, Any] = {"__name__": "__main__"}
    left_out: list[str] = []
    printed: str | None = None
    for block in blocks(page):
        where = f"{name_of(page)}:{block.line}"
        if block.mark == "run":
            printed = None
            if missing := lacking(block.words):
                left_out.append(f"{where} needs {', '.join(missing)}")
            elif block.language == "console":
                run_commands(block.text)
            else:
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
                printed = out.getvalue()
        elif block.mark == "prints" and printed is not None:
            assert printed == block.text, where
    return left_out


RUNNABLE = [page for page in PAGES if any(block.mark == "run" for block in blocks(page))]


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_a_page_does_what_it_shows(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    if left_out := run_page(page):
        pytest.skip("; ".join(left_out))


def test_every_block_of_python_is_run_or_says_why_not() -> None:
    faults = []
    for page in PAGES:
        found = list(blocks(page))
        faults += [f"{name_of(page)}:{b.line}" for b in found if b.language == "python" and not b.mark]
        faults += [f"{name_of(page)}:{b.line}: shown why?" for b in found if b.mark == "shown" and not b.words]
    assert not faults
    assert {"README.md", "docs/howto.md", "docs/reference/step.md"} <= {name_of(page) for page in RUNNABLE}


def test_docs_can_be_read_in_a_day() -> None:
    """Scenarios and reference are looked up; README counts by itself."""
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name != "scenarios.md"]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 50_000


def prose(page: Path) -> str:
    """A page without its blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What headings are called in addresses, by GitHub and by MkDocs alike."""
    titles = re.findall(r"^#+ +(.*?)\s*$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    faults = []
    for page in PAGES:
        for target in LINK.findall(prose(page)):
            path, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or ROOT not in [file, *file.parents]:
                faults.append(f"{name_of(page)}: {target}")
            elif anchor and anchor not in anchors(file):
                faults.append(f"{name_of(page)}: {target} has no such heading")
    assert not faults


def site_hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_quotes_are_what_they_quote() -> None:
    """The tutorial shows the example in plain Markdown, word for word, and all of it that a reader needs."""
    hooks = site_hooks()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert hooks.with_quotes(text) == text, f"{name_of(page)}: python docs/hooks.py brings its quotes up to date"
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    quoted = {name.removeprefix("Engine.") for _, _, name, *_ in hooks.QUOTE.findall(tutorial)}
    assert quoted == {"__init__", "submit", "step", "_grow", "_admitted", "_run", "_compute", "_sample", "_end"}
    assert tutorial.count("quoted from") == len(quoted)


def test_a_reader_of_a_checkout_gets_at_the_reference() -> None:
    """Only the site has docstrings in its pages. Elsewhere each place says what prints them, and the site does not."""
    hooks = site_hooks()
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        modules = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
        printed = re.findall(r"^In a checkout `python -m pydoc (\S+)` prints", text, flags=re.MULTILINE)
        assert printed == modules, name_of(page)
        if modules:
            site_page = SimpleNamespace(file=SimpleNamespace(abs_src_path=page, src_path=name_of(page)))
            on_site = hooks.on_page_markdown(text, page=site_page, config={"repo_url": "https://example.org"})
            assert "python -m pydoc" not in on_site and f"::: {modules[0]}" in on_site


def test_the_package_index_gets_links_that_lead_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows README.md and has no other file of ours: setup.py makes every link of it absolute."""
    names: dict[str, Any] = {"Path": Path, "re": re, "tomllib": tomllib}
    exec(site_hooks().part_of("setup.py", "index_page"), names)
    monkeypatch.chdir(ROOT)
    before, after = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")), LINK.findall(names["index_page"]())
    assert len(after) == len(before) > 15
    for old, new in zip(before, after, strict=True):
        assert new.startswith("https://github.com/quire-kv/quire/") and new.endswith(f"/HEAD/{old}")
        assert ("/raw/" in new) is old.endswith((".svg", ".png"))


def test_the_first_page_is_short_and_opens_with_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert "](docs/live.png)" in text.partition("\n## ")[0]
    assert (ROOT / "docs" / "live.png").read_bytes().startswith(b"\x89PNG")


def test_files_that_pages_name_are_there() -> None:
    """By their last parts: `state/learner.py` is enough where the page is about the core."""
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.rglob("*.p*") if ".venv" not in path.parts]
    faults, found = [], 0
    for page in [page for page in PAGES if page.name != "CHANGELOG.md"]:  # which tells of names that are gone
        for name in re.findall(r"`([\w./]*\w+\.(?:py|pyx|pxi))\b", page.read_text(encoding="utf-8")):
            found += 1
            faults += [] if any(file.endswith(f"/{name}") for file in files) else [f"{name_of(page)}: {name}"]
    assert not faults and found > 100


def test_what_we_tell_people_to_install_is_there() -> None:
    """Every hint and page names our distribution and extras that it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = "".join(path.read_text(encoding="utf-8") for path in [*(ROOT / "quire").rglob("*.py"), *PAGES])
    named = {extra for many in re.findall(r"'quire-kv\[([\w,]+)\]'|'\.\[([\w,]+)\]'", sources) for extra in many}
    hinted = set(re.findall(r"install_line\(.(\w+).\)", sources))
    extras = {extra for group in named for extra in group.split(",") if extra}
    assert hinted >= {"events", "smollm2", "tools", "torch", "transfer"} and extras >= {"events", "transfer"}
    assert hinted | extras <= set(project["optional-dependencies"])
    assert project["name"] == "quire-kv" and not re.search(r"pip install '?quire(?!-kv)\b", sources)


def test_pictures_are_whole_and_load_nothing() -> None:
    pictures = sorted((ROOT / "docs").glob("*.svg"))
    assert len(pictures) >= 2
    for picture in pictures:
        tree = ElementTree.parse(picture)
        assert next(part.tag for part in tree.getroot()).endswith("title"), picture.name
        told = picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in told and "<script" not in told and "<image" not in told, picture.name
