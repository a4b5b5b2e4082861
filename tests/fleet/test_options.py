"""Options of a fleet: what does not go together is refused before anything is started."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from types import ModuleType

import pytest

from quire import InputError
from quire.cli import main as cli
from quire.cli.serve.fleet_options import NOT_THERE, add_fleet, check_fleet


def checked(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "ray.serve"):  # whether it is installed does not matter here
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    parser = ArgumentParser()
    add_fleet(parser)
    for name in NOT_THERE:
        parser.add_argument(f"--{name.replace('_', '-')}")
    check_fleet(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--ray", "auto"], "there are no replicas to run there"),
        (["--replicas", "2", "--disk", "x"], "--disk with --replicas"),
        (["--replicas", "2", "--prefill-peer", "a:1"], "--prefill-peer with --replicas"),
        (["--replicas", "2", "--events", "tcp://127.0.0.1:*"], "--events with --replicas"),
        (["--replicas", "2", "--record", "x"], "--record with --replicas"),
        (["--replicas", "2", "--worker-keys", "a", "b"], "both sides need some"),
    ],
)
def test_what_does_not_go_together(words: list[str], fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=fact):
        checked(words, monkeypatch)


def test_what_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    checked([], monkeypatch)
    checked(["--replicas", "2", "--ray", "auto"], monkeypatch)


def test_the_order_of_eviction_is_that_of_every_replica() -> None:
    pytest.importorskip("ray")
    from quire.cli.serve.fleet_options import _config
    from quire.cli.serve.serve_command import _engine_fields, _parser

    for words, order in ([], "auto"), (["--eviction", "lru"], "lru"):
        assert _config(_parser().parse_args(["--replicas", "2", *words])).replica.eviction == order
    for words, depth in ([], None), (["--compute-doubles-at", "9000"], 9000):
        assert _config(_parser().parse_args(["--replicas", "2", *words])).replica.compute_doubles_at == depth
        assert _engine_fields(_parser().parse_args(words))["compute_doubles_at"] == depth


def test_sharing_is_on_unless_it_is_switched_off() -> None:
    pytest.importorskip("torch")
    from quire.cli.serve.serve_command import _engine_fields, _parser

    for words, shares in ([], True), (["--no-share-pending"], False), (["--share-pending"], True):
        assert _engine_fields(_parser().parse_args(words))["share_pending"] is shares


def test_replicas_share_or_do_not_as_one_server_does() -> None:
    pytest.importorskip("ray")
    from quire.cli.serve.fleet_options import _config
    from quire.cli.serve.serve_command import _parser

    options = _parser().parse_args(["--replicas", "2", "--no-share-pending"])
    assert not _config(options).replica.share_pending


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "quire.fleet.on_ray", raising=False)
    assert cli.main(["serve", "--port", "0", "--replicas", "2"]) == 2
    assert "pip install 'quire-kv[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--grant", "alice"], "it is not TENANT=N"),
        (["--grant", "alice=1.5"], "it is not TENANT=N"),
        (["--grant", "=1"], "it is not TENANT=N"),
        (["--grant", "alice=-1"], "without API keys there are no tenants"),
    ],
)
def test_what_cannot_be_granted(
    words: list[str], fact: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn")
    monkeypatch.delenv("QUIRE_API_KEYS", raising=False)
    assert cli.main(["serve", *words]) == 2
    assert fact in capsys.readouterr().err
