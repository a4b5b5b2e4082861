"""The transfer demo: one process computes a prompt, another decodes it; real bytes, group by group; one may be killed.

The model is a hybrid: 6 full layers, 18 with a window of 128, 24 recurrent ones. The decoder has an earlier turn of the
conversation in its cache, 8,512 of 10,000 tokens, but not the window's pages of it: others have taken their slots.
"""

from __future__ import annotations

import os
import secrets
import sys
import time

from quire.cli.arguments import CommandParser
from quire.core.records.errors import MissingExtra

MISSING: MissingExtra | None = None
try:
    from quire.cli.disagg.stage import (
        FIRST_TOKEN,
        KNOWN,
        LENGTH,
        SLOTS,
        Child,
        StageSettings,
        Worker,
        pages_of,
        serve,
        worker,
    )
    from quire.transfer import Key, Landing, Outcome, Receiving, Session
except MissingExtra as missing:  # help is shown without it
    MISSING = missing

STORY = """\
Prefill here, decode there
==========================
A prompt of {length:,} tokens was computed in process {sender}. Process {receiver} will decode it. It has {known:,}
tokens of an earlier turn in its cache: every full-attention page of them, no window page, and no state after exactly
{length:,} tokens.
"""


def as_receiver(settings: StageSettings, kill: bool) -> int:
    """This process decodes; the other one computes and may be killed."""
    secret = secrets.token_bytes(32)
    me = Worker("receiver", settings, secret)
    me.remember()
    free = me.free()
    children = [Child("sender", settings, secret, 1)]
    try:
        print(STORY.format(length=LENGTH, known=KNOWN, sender=children[0].process.pid, receiver=os.getpid()))
        session, landing, seconds = ask(me, children[0], 1, kill)
        if kill:
            report_loss(session, me, free)
            children.append(Child("sender", settings, secret, 2))
            print("\nAnother process computes it. The new attempt has a new epoch: the first cannot reach it.\n")
            session, landing, seconds = ask(me, children[1], 2, False)
        good = session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED
        print(table(me, landing))
        wrong = [page for page in pages_of(landing) if (me.pages[page.group][page.slot] != page.mark).any()]
        token = session.aux.first_tokens[0] if session.aux else None
        rate = session.num_bytes / seconds / 1e9
        print(f"{verdict(session)}: {session.num_bytes:,} bytes in {seconds * 1e3:.0f} ms, handshake included")
        print(f"({rate:.2f} GB/s over {settings.link}); {len(wrong)} wrong pages, first token {token}.")
        whole = me.view.shape().bytes_of(landing.needs) / 1e9 / rate * 1e3
        print(f"At that rate the bytes of one start for all groups would take {whole:.0f} ms.")
        return 0 if good and not wrong and token == FIRST_TOKEN else 1
    finally:
        me.link.close()
        for child in children:
            child.end()


def ask(me: Worker, child: Child, epoch: int, kill: bool) -> tuple[Receiving, Landing, float]:
    """One attempt, timed; the sender is killed when part of it has arrived."""
    key, begin = Key("prompt", epoch), time.monotonic()
    session = me.receive(key, child.address)
    landing = me.end.landing(session)
    assert landing is not None
    first = int(landing.places[0].max())
    for slots, pages in zip(landing.places, me.pages, strict=True):
        pages[slots[slots >= 0]] = 0
    if kill:
        me.until(lambda: bool(me.pages[0][first].any()) or session.verdict is not None)
        child.kill()
    me.until(lambda: not me.end.is_open(key))
    return session, landing, time.monotonic() - begin


def as_sender(settings: StageSettings) -> int:
    """This process computes; the one that was to decode is killed in the middle, and another one asks."""
    secret = secrets.token_bytes(32)
    me = Worker("sender", settings, secret)
    serve(me, Key("prompt", 1))
    sequence = me.cache.sequence("prompt")
    children = [Child("receiver", settings, secret, 1, me.link.address)]
    try:
        print(STORY.format(length=LENGTH, known=KNOWN, sender=os.getpid(), receiver=children[0].process.pid))
        me.until(lambda: me.end.is_moving)
        children[0].kill()
        begin = time.monotonic()
        (lost,) = me.until(lambda: not me.end.num_open)
        after = (time.monotonic() - begin) * 1e3
        print(f"The receiver was killed in the middle. {after:.0f} ms later: {verdict(lost)}.")
        print("The sender's pages are its own again; the prompt is still there for the next receiver.")
        serve(me, Key("prompt", 2))
        children.append(Child("receiver", settings, secret, 2, me.link.address))
        (second,) = me.until(lambda: not me.end.num_open)
        me.cache.release(sequence)
        used = [slots - free for slots, free in zip(SLOTS, me.free(), strict=True)]
        print(f"A new receiver asked: {verdict(second)}. Pages still held: {used}.")
        return 0 if second.verdict and second.verdict.outcome is Outcome.DELIVERED and not any(used) else 1
    finally:
        me.link.close()
        for child in children:
            child.end()


def verdict(session: Session) -> str:
    """How it ended, in words."""
    if session.verdict is None:
        return "still open"
    return str(session.verdict.outcome) + (f" ({session.verdict.reason})" if session.verdict.reason else "")


def report_loss(session: Receiving, me: Worker, free: list[int]) -> None:
    """What the survivor knows, and what it has got back."""
    print(f"The sender was killed in the middle: {verdict(session)}.")
    print(f"Free slots before and after, per group: {free} and {me.free()}. Its door is shut: nothing more can land.")
    print("Without another sender it would compute from token 0: that is where all groups can resume.")


def table(me: Worker, landing: Landing) -> str:
    """What each group needs, holds and wants; and what one start for all groups would have sent."""
    shape = me.view.shape()
    head = f"{'group':8}{'needs':>8}{'holds':>8}{'wants':>8}{'bytes wanted':>16}{'with one start':>16}"
    lines = [head, "-" * len(head)]
    sums = [0, 0]
    for number, group in enumerate(shape.groups):
        need, held, want = (sum(map(len, spans[number])) for spans in (landing.needs, landing.held, landing.wants))
        pair = (want * group.page_bytes, need * group.page_bytes)  # one start for all groups is token 0 here
        sums = [total + part for total, part in zip(sums, pair, strict=True)]
        lines.append(f"{group.name:8}{need:8}{held:8}{want:8}{pair[0]:16,}{pair[1]:16,}")
    saved = 100 * (1 - sums[0] / sums[1])
    lines.append(f"{'':32}{sums[0]:16,}{sums[1]:16,}   {saved:.1f} % less\n")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the demo, or a child of it."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["worker"]:
        return worker(*words[1:])
    parser = CommandParser("quire disagg", description="Prefill in one process, decode in another.")
    parser.add_argument("what", choices=["demo"])
    parser.add_argument("--kill", choices=["sender", "receiver"], help="kill that process in the middle")
    parser.add_argument("--link", choices=["tcp", "nixl"], default="tcp")
    parser.add_argument("--scale", type=int, choices=[1, 2, 4, 8], default=1, help="smaller pages: 1/SCALE")
    try:
        options = parser.parse_args(words)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    if MISSING is not None:
        raise MISSING
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    os.environ.setdefault("UCX_LOG_LEVEL", "fatal")  # a killed peer is part of the story
    settings = StageSettings(options.link, options.scale)
    if options.kill == "receiver":
        return as_sender(settings)
    return as_receiver(settings, options.kill == "sender")
