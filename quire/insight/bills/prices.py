"""PriceList: what each thing on a bill costs, out of a TOML file, and what a line comes to. Exact: decimal numbers.

currency = "EUR"
[tokens]                # per million
computed = 0.40
reused_own = 0.04
[held]                  # per GiB and hour, by tier
device = 0.50
[loaded]                # per GiB, by tier
host = 0.001
[per_tenant.alice]      # the same, where it is another price for one
tokens.computed = 0.30
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

from quire.core.records.errors import InputError, say, shown
from quire.insight.bills.bill import Bill, BillLine, Who

TOKENS = ("computed", "reused_own", "reused_shared", "received", "answers")
TABLES, SINGLE = ("tokens", "held", "loaded"), ("evicted", "late", "requests")
MILLION, GIB, HOUR = Decimal(10**6), Decimal(1 << 30), Decimal(3600 * 10**9)
EXACT = 120  # digits: more than a sum of whole numbers times a price has
MOST_BYTES = 1 << 20
Table = Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Tariff:
    """PriceList by name; what has none costs nothing."""

    tokens: Table = field(default_factory=dict)
    held: Table = field(default_factory=dict)
    loaded: Table = field(default_factory=dict)
    evicted: Decimal = Decimal(0)  # per GiB of others' pages that went to make room for this one
    late: Decimal = Decimal(0)  # per answer that came late; below zero: a refund
    requests: Decimal = Decimal(0)

    def cost(self, line: BillLine, evicted_for: int) -> Decimal:
        """What a line comes to."""
        with localcontext() as context:
            context.prec = EXACT
            cost = (
                sum((self.tokens.get(name, Decimal(0)) * getattr(line, name) for name in TOKENS), Decimal(0)) / MILLION
            )
            cost += (
                sum((self.held.get(tier, Decimal(0)) * held for tier, held in line.held.items()), Decimal(0))
                / GIB
                / HOUR
            )
            cost += sum((self.loaded.get(tier, Decimal(0)) * n for tier, n in line.loaded.items()), Decimal(0)) / GIB
            return cost + self.evicted * evicted_for / GIB + self.late * line.late + self.requests * line.requests


@dataclass(frozen=True, slots=True)
class PriceList:
    """A tariff for all, and others for some tenants."""

    currency: str = ""
    usual: Tariff = field(default_factory=Tariff)
    tenants: Mapping[str, Tariff] = field(default_factory=dict)

    def tariff(self, who: Who) -> Tariff:
        """What an account pays by."""
        known = who.kind == "tenant" and who.tenant is not None
        return self.tenants.get(who.tenant or "", self.usual) if known else self.usual

    def costs(self, bill: Bill) -> dict[Who, Decimal]:
        """What every line comes to."""
        return {who: self.tariff(who).cost(line, bill.evicted_for(who)) for who, line in bill.lines.items()}


def load_prices(path: str | Path) -> PriceList:
    """Read them; what is not understood is refused, not left out."""
    ask = f"the prices {path}"
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as wrong:
        raise InputError(say(ask, f"{wrong.strerror}", "name a TOML file, as docs/bills.md shows one")) from None
    if len(data) > MOST_BYTES:
        raise InputError(say(ask, f"they are longer than {MOST_BYTES} bytes", "name a TOML file"))
    try:
        found = tomllib.loads(data.decode(), parse_float=Decimal)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as wrong:
        raise InputError(say(ask, f"{shown(str(wrong))}", "write TOML, as docs/bills.md shows")) from None
    currency, others = found.pop("currency", ""), found.pop("per_tenant", {})
    if not isinstance(currency, str) or not isinstance(others, dict):
        raise InputError(say(ask, "currency is a text, per_tenant a table", "write them so"))
    usual = _tariff(ask, found, Tariff())
    return PriceList(currency, usual, {name: _tariff(ask, table, usual) for name, table in others.items()})


def _tariff(ask: str, found: Any, usual: Tariff) -> Tariff:
    if not isinstance(found, dict) or (unknown := found.keys() - set(Tariff.__slots__)):
        named = shown(sorted(unknown)[0]) if isinstance(found, dict) else shown(found)
        raise InputError(say(ask, f"there is no price {named}", f"use {', '.join(Tariff.__slots__)}"))
    tokens, held, loaded = (_table(ask, name, found.get(name, {}), getattr(usual, name)) for name in TABLES)
    evicted, late, requests = (
        _price(ask, name, found[name]) if name in found else getattr(usual, name) for name in SINGLE
    )
    return Tariff(tokens, held, loaded, evicted, late, requests)


def _table(ask: str, name: str, found: Any, usual: Table) -> Table:
    if not isinstance(found, dict) or (name == "tokens" and found.keys() - set(TOKENS)):
        raise InputError(say(ask, f"{name} is {shown(found)}", f"price {', '.join(TOKENS)} there, or tiers"))
    return dict(usual) | {key: _price(ask, f"{name}.{key}", value) for key, value in found.items()}


def _price(ask: str, name: str, value: Any) -> Decimal:
    if type(value) not in (int, Decimal) or not Decimal(value).is_finite():
        raise InputError(say(ask, f"{name} is {shown(value)}", "give a number"))
    return Decimal(value)
