"""quire bill: what each tenant used of a cache: tokens, memory, reads from colder tiers, evictions; and what it costs.

quire bill FOLDER                    what a server with --bills FOLDER has written last
quire bill http://localhost:8000     what a server says now (with API keys: --key-file, the operator's or a tenant's)
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from argparse import Namespace
from pathlib import Path

from quire.cli.arguments import CommandParser
from quire.cli.main import run_act
from quire.cli.serve.bill_page import page
from quire.cli.serve.bill_rows import as_csv, as_text
from quire.core.records.errors import InputError, say
from quire.insight.bills.bill import Bill
from quire.insight.bills.bill_file import MOST_BYTES, load_bill, parse_bill
from quire.insight.bills.prices import PriceList, load_prices
from quire.simulate.show.page_file import check_page, write_page

SECONDS = 30.0


def main(argv: list[str] | None = None) -> int:
    """Show a bill."""
    parser = CommandParser(prog="quire bill", description=__doc__)
    add = parser.add_argument
    add("source", metavar="FOLDER|URL", help="what a server was given as --bills, its file, or the server itself")
    add("--prices", metavar="TOML", help="what each thing costs")
    add("--format", choices=["table", "csv", "json"], default="table", help="(default table)")
    add("--html", metavar="FILE", help="write a page, too")
    add("--key-file", metavar="FILE", help="an API key for a server; default: $QUIRE_API_KEY")
    add("--ca", metavar="PEM", help="whom to believe, for a server's own certificate")
    parser.set_defaults(act=_show)
    return run_act("bill", parser.parse_args(argv))


def _show(options: Namespace) -> int:
    check_page(options.html)
    prices = None if options.prices is None else load_prices(options.prices)
    is_url = options.source.startswith(("http://", "https://"))
    bill = _ask(options) if is_url else load_bill(options.source)
    sys.stdout.write(_text(options.format, bill, prices))
    if options.html is not None:
        return 0 if write_page(options.html, page(bill, prices), "quire bill") else 1
    return 0


def _text(form: str, bill: Bill, prices: PriceList | None) -> str:
    if form == "csv":
        return as_csv(bill, prices)
    if form == "table":
        return as_text(bill, prices)
    data = bill.to_json()
    if prices is not None:
        costs = prices.costs(bill)
        for line, who in zip(data["lines"], bill.lines, strict=True):
            line["cost"] = f"{costs[who]:f}"  # a decimal number: JSON's may lose digits
        data["currency"] = prices.currency
    return json.dumps(data, indent=1) + "\n"


def _ask(options: Namespace) -> Bill:
    """The bill of a server."""
    ask, key = f"the bill of {options.source}", _key(options)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{options.source.rstrip('/')}/bills", headers=headers)
    try:
        context = ssl.create_default_context(cafile=options.ca) if options.source.startswith("https:") else None
        with urllib.request.build_opener(_NoOther(), urllib.request.HTTPSHandler(context=context)).open(
            request, timeout=SECONDS
        ) as reply:
            data = reply.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as wrong:
        facts = {401: "it does not know this key", 404: "it keeps none"}
        fact = facts.get(wrong.code, f"it answers {wrong.code}")
        cure = "give --key-file FILE" if wrong.code == 401 else "start it with --bills FOLDER"
        raise InputError(say(ask, fact, cure)) from None
    except (OSError, ValueError) as wrong:
        raise InputError(say(ask, f"it cannot be reached: {wrong}", "name a server of Quire")) from None
    return parse_bill(data, options.source)


class _NoOther(urllib.request.HTTPRedirectHandler):
    """A key goes only to the address it was meant for."""

    def redirect_request(self, *_: object) -> None:
        return None


def _key(options: Namespace) -> str:
    if options.key_file is None:
        return os.environ.get("QUIRE_API_KEY", "")
    try:
        words = Path(options.key_file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as wrong:
        raise InputError(say("the API key", str(wrong), "name a file that has it")) from None
    if not words:
        raise InputError(say("the API key", "the file is empty", "put the key into it"))
    return words[-1]
