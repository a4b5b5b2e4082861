"""What is under way counts: a prompt goes where its beginning is being computed, and nothing of it stays behind."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from quire import Scope
from quire.fleet.in_flight import InFlight, WorkTicket
from quire.fleet.prefix_marks import FINE, marks_of, tokens_up_to
from quire.fleet.worker_book import WorkerBook

PLAIN = Scope()
WORKERS = ["a", "b", "c"]


def prompt(dice: random.Random, length: int) -> list[int]:
    return dice.choices(range(1000), k=length)


def test_marks_say_how_much_of_two_prompts_is_equal() -> None:
    dice = random.Random(0)
    for _ in range(200):
        shared = prompt(dice, dice.randrange(3 * FINE))
        one, other = (np.array([*shared, end, *prompt(dice, dice.randrange(600))], np.int32) for end in (1, 2))
        table = InFlight()
        WorkTicket(marks_of(one, PLAIN)).enter(table, "a")
        found = table.leading(marks_of(other, PLAIN)).get("a", 0)
        assert found <= len(shared) < found + (16 if len(shared) < FINE else 256)
        assert table.leading(marks_of(other, Scope(salt="x"))) == {}
    assert [tokens_up_to(count) for count in (0, 1, 64, 65)] == [0, 16, 1024, 1280]


def test_a_beginning_that_is_being_computed_draws_others_to_it() -> None:
    dice, book = random.Random(0), WorkerBook()
    try:
        shared = prompt(dice, 160)
        first = WorkTicket(marks_of(np.array(shared + prompt(dice, 40), np.int32), PLAIN))
        first.enter(book.in_flight, "b")
        also = np.array(shared + prompt(dice, 40), np.int32)
        other = np.array(prompt(dice, 200), np.int32)
        for _ in range(20):  # equal ones are drawn by lot
            assert book.rank(WORKERS, also, PLAIN)[0] == "b"
            assert book.rank(WORKERS, other, PLAIN)[-1] == "b"
            assert book.rank(WORKERS, also, Scope(salt="x"))[-1] == "b"
        more = [WorkTicket() for _ in range(10)]
        for ticket in more:
            ticket.enter(book.in_flight, "b")  # 11 x 16 tokens outweigh 160
        assert book.rank(WORKERS, also, PLAIN)[-1] == "b"
    finally:
        book.close()


def test_a_ticket_leaves_nothing_behind_however_it_goes() -> None:
    dice, table = random.Random(0), InFlight()
    shared = prompt(dice, 64)
    tickets = [WorkTicket(marks_of(np.array(shared + prompt(dice, 50), np.int32), PLAIN)) for _ in range(30)]
    for _ in range(400):
        ticket = dice.choice(tickets)
        dice.choice((lambda one=ticket: one.enter(table, dice.choice(WORKERS)), ticket.withdraw, ticket.lost))()
        held = {one.worker for one in tickets if one.worker is not None}
        assert set(table.leading(tickets[0].marks)) == held
    for ticket in tickets:
        ticket.leave()
        ticket.enter(table, "a")  # too late: nobody waits for it
    assert table.loads() == {} and table.leading(tickets[0].marks) == {}
