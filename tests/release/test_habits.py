"""Files that no program of ours reads agree with each other: workflows, constraints, hooks, owners, the change log."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_fit_what_the_package_asks_for() -> None:
    requirements = pytest.importorskip("packaging.requirements")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    apart = re.search(r"^APART *= (.*)$", MAKEFILE, re.MULTILINE)
    assert apart is not None
    pins = {plain(name): version for name, version in PINS.items()}
    for asked in map(requirements.Requirement, extras["dev"]):
        if plain(asked.name) not in apart[1].split():
            assert pins[plain(asked.name)] in asked.specifier, asked
    assert not set(apart[1].split()) & set(pins)


def test_hooks_have_the_versions_of_the_constraints() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    named = dict(re.findall(r"\[([\w-]+)==([\d.]+)\]", text))
    assert named and named == {name: PINS[name] for name in named} and ".venv/" not in text


def test_a_long_subject_is_found_and_a_good_one_is_not() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pattern = re.search(r"entry: '(\\A.*)'", text)
    assert pattern is not None
    for message, bad in {
        "x" * 72 + "\n\nwhy\n": False, "x" * 72 + "\n": False, "x" * 73 + "\n\nwhy\n": True, "x\nwhy\n": True,
        "x\n# a comment of git\n": False,
    }.items():  # fmt: skip
        assert bool(re.search(pattern[1], message, re.MULTILINE)) is bad, message[:20]


@pytest.mark.skipif(not WORKFLOWS, reason="an sdist has no workflows")
def test_workflows_call_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([\w./()$-]+):(?!=)", MAKEFILE.replace("$(VENV)", ".venv"), re.MULTILINE))
    for name, text in WORKFLOWS.items():
        for words in re.findall(r"\bmake ([^\n]*)", re.sub(r"#.*|name:.*", "", text)):
            called = [word for word in re.split(r" &&| ARGS", words)[0].split() if "=" not in word]
            assert called and set(called) <= targets, (name, called)
    everything = "".join(WORKFLOWS.values())
    assert all(word in everything for word in ("ubuntu-24.04-arm", "make debian soak", "coverage", "make constraints"))


def test_the_change_log_has_an_open_section_above_dated_ones() -> None:
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0] == "Unreleased" and re.fullmatch(r"0\.2\.0 \(\d{4}-\d\d-\d\d\)", heads[1]), heads
