"""What one sees of the objects of transfer: short, useful, one line, no tokens and no secret."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quire.transfer as transfer
from quire import Request, Span
from quire.transfer import Aux, BlockLists, EndpointThread, Key, Limits, Source, TcpLink, Tls, Vote, with_logits
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import hello

from .rig import Rig
from .sides import GROUPS, ListSide, StagedSide, tokens

TOKEN = 424_242  # of every prompt: in no number that is shown
SECRET = b"do-not-show-this-secret"
PROMPT = Request("r", tokens([TOKEN] * 22))
KEY = Key("r", 1)


def everything() -> dict[str, Any]:
    """One of each, in the middle of its work."""
    rig = Rig()
    rig.serve(PROMPT, KEY, aux=with_logits(Aux((TOKEN,), (TOKEN,) * 3), np.full((1, 5), TOKEN, np.float32)))
    receiving = rig.ask(PROMPT, KEY)
    landing = rig.d.landing(receiving)
    assert landing is not None
    lists = ListSide()
    lists.compute(PROMPT)
    offer = rig.sides["p"].view.offer("r", Span(0, 22))
    assert offer is not None
    staged = staged_view()
    sending = rig.p._registry.dispatches[KEY].session
    ask = wire.Ask(*KEY, 0, 9, 22, landing.content, (wire.GroupWant(6, ((0, bytes(24)),)),), 0, 5.0)
    return {
        "Aux": Aux((TOKEN,), (TOKEN,), bytes(20), 5),
        "AuxRoom": transfer.AuxRoom(),
        "BlockLists": lists.view,
        "Endpoint": rig.p,
        "Grid": transfer.Grid(),
        "Key": KEY,
        "Landing": landing,
        "Layout": rig.p._registry.layout,
        "Limits": Limits(),
        "LocalHub": rig.hub,
        "LocalLink": rig.links["p"],
        "Offer": offer,
        "PageShape": rig.p._registry.layout.pages[0],
        "QuireView": rig.sides["p"].view,
        "Receiving": receiving,
        "Sending": sending,
        "Source": Source(("p",)),
        "StagedView": staged,
        "Tls": Tls("cert.pem", "key.pem"),
        "Verdict": transfer.Verdict(transfer.Outcome.FAILED, "why"),
        "Vote": Vote(frozenset(map(str, range(5000)))),
        "Order": wire.Order(*KEY, PROMPT.tokens.tobytes()),
        "Ask": ask,
        "DeliveryReport": wire.DeliveryReport(*KEY, 0, True, True, (), 9, "", PROMPT.tokens.tobytes()),
        "Hello": hello(rig.p._registry.layout),
    }


def staged_view() -> Any:
    from quire.tiers import ArenaTier

    slots = (24, 24, 8)
    device = ArenaTier("device", slots, [group.page_bytes for group in GROUPS])
    side = StagedSide(ListSide(), device, slots)
    side.compute(PROMPT)
    side.view.offer("r", Span(0, 22))
    return side.view


def test_reprs_are_short_and_keep_what_is_not_theirs_to_show() -> None:
    for name, made in everything().items():
        shown = repr(made)
        assert name in shown, shown
        assert len(shown) < (900 if name == "Hello" else 300) and "\n" not in shown and " at 0x" not in shown, shown
        raw = PROMPT.tokens[:2].tobytes()
        for hidden in (str(TOKEN), repr(raw)[2:-1], SECRET.decode()):
            assert hidden not in shown, shown


def test_what_they_say() -> None:
    made = everything()
    assert repr(made["Endpoint"]) == "Endpoint('p', sends 1, receives 0, knows 1 peers)"
    assert repr(made["Sending"]) == "Sending(r#1, 22 tokens, 1 pieces and complete, to [], open)"
    assert repr(made["Receiving"]) == "Receiving(r#1, from ['p'], 0 of 1 have sent their last report, open)"
    pages = "needs [6, 2, 1] pages, holds [0, 0, 0], wants [6, 2, 1]"
    assert repr(made["Landing"]) == f"Landing(22 tokens, {pages}, start 0)"
    assert repr(made["Offer"]) == "Offer(22 tokens, pages [6, 2, 1])"
    assert repr(made["Aux"]) == "Aux(1 first tokens, 1 drafts, 1 rows of 5 logits)"
    made["Receiving"].fail("x" * 5000, 0.0)
    assert len(repr(made["Receiving"])) < 350 and "failed: xxx" in repr(made["Receiving"])


def test_links_and_pumps() -> None:
    link = TcpLink("b", [], SECRET)
    assert repr(link) == f"TcpLink('b', at {link.address}, 0 connections)"
    link.close()
    assert repr(link) == "TcpLink('b', closed, 0 connections)"
    assert repr(TcpLink("c", [], SECRET, listen=None)) == "TcpLink('c', does not listen, 0 connections)"
    rig = Rig()
    thread = EndpointThread(rig.p)
    assert repr(thread) == f"EndpointThread({rig.p!r}, running)"
    thread.close()
    assert repr(thread) == f"EndpointThread({rig.p!r}, closed)"


@pytest.mark.parametrize("count", [0, 3])
def test_block_lists_count_their_prompts(count: int) -> None:
    lists = BlockLists(GROUPS, 4, (24, 24, 8))
    for nth in range(count):
        lists.compute(Request(nth, tokens(range(9))))
    assert repr(lists).startswith(f"BlockLists({count} prompts, slots [")
