"""Bill: lines of whole numbers, one per account, and their sums. Plain data; measures nothing, and knows no prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from quire.core.records.errors import InputError, say, shown

Kind = Literal["tenant", "others", "nobody"]
FORMAT, VERSION = "quire-bill", 1
NAMES = ("tenant", "adapter", "session")


class Who(NamedTuple):
    """Whose line it is. `others`: those whose names came when the accounts were used up; `nobody`: the cache itself."""

    tenant: str | None = None
    adapter: str | None = None
    session: str | None = None
    kind: Kind = "tenant"

    @property
    def name(self) -> str:
        """For people; it distinguishes nothing."""
        if self.kind != "tenant":
            return f"({self.kind})"
        parts = [self.tenant or "(no tenant)", self.adapter and f"adapter {self.adapter}"]
        return ", ".join([part for part in parts if part] + [f"session {self.session}"] * (self.session is not None))


OTHERS, NOBODY = Who(kind="others"), Who(kind="nobody")


@dataclass(slots=True)
class BillLine:
    """What one account has used. Tokens are the prompts', but for answers; held is in byte-nanoseconds, by tier."""

    requests: int = 0
    computed: int = 0
    reused_own: int = 0  # pages that the account used before
    reused_shared: int = 0  # pages that only others had used
    received: int = 0  # brought by a transfer
    answers: int = 0  # answer tokens computed
    late: int = 0  # answers whose first token came after its deadline
    loaded: dict[str, int] = field(default_factory=dict)  # bytes read from a colder tier, by that tier
    held: dict[str, int] = field(default_factory=dict)
    evicted_by: dict[Who, int] = field(default_factory=dict)  # bytes of its pages that went, by who needed the room

    @property
    def prompt(self) -> int:
        """Prompt tokens, however they came."""
        return self.computed + self.reused_own + self.reused_shared + self.received

    @property
    def evicted(self) -> int:
        """Bytes of its pages that were evicted with their last copy, by whomever."""
        return sum(self.evicted_by.values())

    def add(self, other: BillLine) -> None:
        """Another line is of the same account."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, more in ((self.loaded, other.loaded), (self.held, other.held)):
            for tier, number in more.items():
                mine[tier] = mine.get(tier, 0) + number
        for who, number in other.evicted_by.items():
            self.evicted_by[who] = self.evicted_by.get(who, 0) + number


COUNTS = tuple(one.name for one in fields(BillLine)[:7])


@dataclass(slots=True)
class Bill:
    """Every account's line since a day. Times are ISO 8601, UTC."""

    tiers: tuple[str, ...]  # the device first
    since: str
    until: str
    lines: dict[Who, BillLine] = field(default_factory=dict)
    note: str = ""  # why it is not whole

    @property
    def total(self) -> BillLine:
        """All lines together."""
        total = BillLine()
        for line in self.lines.values():
            total.add(line)
        return total

    def evicted_for(self, who: Who) -> int:
        """Bytes of whomever's pages that went to make room for this account."""
        return sum(line.evicted_by.get(who, 0) for line in self.lines.values())

    def line(self, who: Who) -> BillLine:
        """The line of an account, a new one if it has none."""
        return self.lines.setdefault(who, BillLine())

    def add(self, other: Bill) -> None:
        """What another bill says is billed here too, as of a cache that was before this one."""
        self.since, self.until = min(self.since, other.since), max(self.until, other.until)
        self.tiers += tuple(tier for tier in other.tiers if tier not in self.tiers)
        self.note = self.note or other.note
        for who, line in other.lines.items():
            self.line(who).add(line)

    def of_tenant(self, tenant: str) -> Bill:
        """What one tenant may see: its own lines. Who else evicted its pages is `others`, without a name."""
        mine = Bill(self.tiers, self.since, self.until, note=self.note)
        for who, line in self.lines.items():
            if who.kind == "tenant" and who.tenant == tenant:
                kept = mine.line(who)
                kept.add(line)
                kept.evicted_by = {}
                for other, number in line.evicted_by.items():
                    seen = other if other.tenant == tenant and other.kind == "tenant" else OTHERS
                    kept.evicted_by[seen] = kept.evicted_by.get(seen, 0) + number
        return mine

    def to_json(self) -> dict[str, Any]:
        """Plain data. Whole numbers, and so exact, however large."""
        return {
            "format": FORMAT, "version": VERSION, "since": self.since, "until": self.until, "tiers": list(self.tiers),
            "note": self.note, "lines": [_line_json(who, line) for who, line in self.lines.items()],
            "total": _numbers(self.total) | {"evicted": self.total.evicted},
        }  # fmt: skip


def _numbers(line: BillLine) -> dict[str, Any]:
    return {name: getattr(line, name) for name in COUNTS} | {"loaded": line.loaded, "held": line.held}


def _who_json(who: Who) -> dict[str, Any]:
    return dict(who._asdict())


def _line_json(who: Who, line: BillLine) -> dict[str, Any]:
    by = [_who_json(other) | {"bytes": number} for other, number in line.evicted_by.items()]
    return _who_json(who) | _numbers(line) | {"evicted_by": by}


def bill_of(data: Any) -> Bill:
    """A bill out of its JSON; what does not add up to its own total is refused."""
    ask = "a bill"
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise InputError(say(ask, "this is not one", "pass what `quire bill` or a server wrote"))
    if data.get("version") != VERSION:
        fact = f"its version is {shown(data.get('version'))}, this program reads {VERSION}"
        raise InputError(say(ask, fact, "use the program that wrote it, or a newer one"))
    try:
        bill = Bill(
            tuple(map(_text, data["tiers"])), _text(data["since"]), _text(data["until"]), note=_text(data["note"])
        )
        for one in data["lines"]:
            line = bill.lines[_who_of(one)] = _line_of(one)
            line.evicted_by = {_who_of(by): _number(by["bytes"]) for by in one["evicted_by"]}
        total = bill.total
        if _numbers(_line_of(data["total"])) != _numbers(total) or total.evicted != _number(data["total"]["evicted"]):
            raise ValueError("its lines are not its total")
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise InputError(say(ask, f"it is damaged: {shown(str(wrong))}", "use an older copy")) from None
    return bill


def _who_of(data: Mapping[str, Any]) -> Who:
    kind = data["kind"]
    if kind not in ("tenant", "others", "nobody"):
        raise ValueError("an account of no kind")
    tenant, adapter, session = (None if data[name] is None else _text(data[name]) for name in NAMES)
    return Who(tenant, adapter, session, kind)


def _line_of(data: Mapping[str, Any]) -> BillLine:
    line = BillLine(loaded=_by_tier(data["loaded"]), held=_by_tier(data["held"]))
    for name in COUNTS:
        setattr(line, name, _number(data[name]))
    return line


def _by_tier(data: Mapping[str, Any]) -> dict[str, int]:
    return {_text(tier): _number(number) for tier, number in data.items()}


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{shown(value)} is no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no text")
    return value


def split(number: int, weights: Iterable[int]) -> list[int]:
    """A whole number in parts that go by the weights and add up to it; what is left over goes to the first ones."""
    shares = list(weights)
    whole = sum(shares)
    parts = [number * share // whole for share in shares]
    left = number - sum(parts)
    for place, share in enumerate(shares):
        if left and share:
            parts[place] += 1
            left -= 1
    return parts
