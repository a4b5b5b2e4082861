"""Connections by host: who has most loses his own, the oldest first; one host's network counts as one host."""

from __future__ import annotations

import random

import pytest

from quire.net.hosts import is_loopback, neighbourhood
from quire.net.limits.by_host import ByHost


def filled(*pairs: tuple[str, str]) -> ByHost[str]:
    made: ByHost[str] = ByHost()
    for name, address in pairs:
        made.add(name, address)
    return made


def test_the_oldest_of_the_host_with_most_goes_first() -> None:
    open_ones = filled(("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.2"), ("d", "10.0.0.3"))
    assert open_ones.first() == "b" and open_ones.of_the_most() == ["b", "c"]
    assert open_ones.first(lambda name: name != "b") == "c"
    assert open_ones.first(lambda name: name in "ad") == "a", "hosts with as many: the oldest of all"
    assert open_ones.first(lambda name: False) is None and list(open_ones) == ["a", "b", "c", "d"]


def test_among_hosts_with_as_many_a_host_that_stayed_is_not_older_than_its_connections() -> None:
    open_ones = filled(("old", "10.0.0.1"), ("b", "10.0.0.2"), ("young", "10.0.0.1"))
    assert open_ones.remove("old") == "10.0.0.1" and open_ones.remove("old") is None
    assert open_ones.first() == "b"


def test_what_is_removed_leaves_nothing() -> None:
    open_ones = filled(("a", "10.0.0.1"))
    assert open_ones.remove("a") == "10.0.0.1" and not len(open_ones)
    assert open_ones.first() is None and open_ones.of_the_most() == [] and not open_ones._connections


def test_a_network_of_64_bits_is_one_host() -> None:
    open_ones = filled(("a", "2001:db8::1"), ("b", "10.0.0.1"), ("c", "2001:db8::2%eth0"), ("d", "2001:db8:0:1::1"))
    assert open_ones.of_the_most() == ["a", "c"]
    assert neighbourhood("::ffff:10.0.0.1") == neighbourhood("10.0.0.1") == "10.0.0.1"
    host = neighbourhood("2001:db8::1")
    assert neighbourhood(host) == host and neighbourhood("no address") == "no address"


def test_it_chooses_as_a_plain_search_would() -> None:
    chance, open_ones = random.Random(5), ByHost[int]()
    there: dict[int, str] = {}
    for number in range(600):
        if there and chance.random() < 0.45:
            gone = chance.choice(list(there))
            assert open_ones.remove(gone) == there.pop(gone)
        else:
            there[number] = f"10.0.0.{chance.randrange(6)}"
            open_ones.add(number, there[number])
        counts = {host: list(there.values()).count(host) for host in there.values()}
        may_go = [name for name in there if name % 3]
        best = max(may_go, key=lambda name: (counts[there[name]], -name), default=None)
        assert open_ones.first(lambda name: bool(name % 3)) == best and list(open_ones) == list(there)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_others_can_reach_it(host: str) -> None:
    assert not is_loopback(host)
