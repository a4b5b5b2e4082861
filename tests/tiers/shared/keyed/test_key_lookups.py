"""KeyLookups: one question for a step, one answer for a request, and never a wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.tiers.shared.keyed import KeyLookups

PATIENCE = 3.0
Then = Callable[[list[bool]], None]


class Rig:
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.now, self.takes = 0.0, True
        self.asked: list[tuple[list[bytes], Then]] = []
        self.lookups = KeyLookups(self.ask, PATIENCE, lambda: self.now)

    def ask(self, keys: Sequence[bytes], then: Then) -> bool:
        if self.takes:
            self.asked.append((list(keys), then))
        return self.takes

    def answer(self, *there: bool) -> None:
        _, then = self.asked.pop(0)
        then(list(there))


def test_a_step_asks_once_and_a_request_sees_one_answer() -> None:
    rig = Rig()
    assert [rig.lookups.look(key, "r") for key in (b"a", b"b", b"a")] == [None] * 3
    assert rig.lookups.look(b"b", "q") is None and not rig.asked
    rig.lookups.flush()
    rig.lookups.flush()
    assert [keys for keys, _ in rig.asked] == [[b"a", b"b"]]
    rig.answer(True, False)
    assert [rig.lookups.look(key, "r") for key in (b"a", b"b")] == [True, False]
    rig.lookups.flush()
    assert not rig.asked, "what is not there is not asked for at every step"


def test_an_answer_lasts_as_long_as_a_request_that_asked() -> None:
    rig = Rig()
    for request in ("r", "q"):
        rig.lookups.look(b"a", request)
    rig.lookups.flush()
    rig.answer(False)
    rig.lookups.end("r")
    assert rig.lookups.look(b"a", "q") is False and len(rig.lookups) == 1
    rig.lookups.end("q")
    rig.lookups.end("q")
    assert len(rig.lookups) == 0 and rig.lookups.look(b"a", "s") is None


def test_an_answer_for_a_request_that_has_ended_is_nobodys() -> None:
    rig = Rig()
    rig.lookups.look(b"a", "r")
    rig.lookups.flush()
    rig.lookups.end("r")
    assert rig.lookups.look(b"a", "q") is None
    rig.answer(True)  # of the question before
    assert rig.lookups.look(b"a", "q") is None
    rig.lookups.flush()
    rig.answer(False)
    assert rig.lookups.look(b"a", "q") is False


def test_what_ended_before_its_question_went_out_is_not_asked() -> None:
    rig = Rig()
    rig.lookups.look(b"a", "r")
    rig.lookups.end("r")
    rig.lookups.flush()
    assert not rig.asked


def test_no_answer_in_time_is_a_no_and_stays_one() -> None:
    rig = Rig()
    rig.lookups.look(b"a", "r")
    rig.lookups.flush()
    rig.now = PATIENCE
    assert rig.lookups.look(b"a", "r") is None
    rig.now += 0.1
    assert rig.lookups.look(b"a", "r") is False
    rig.answer(True)
    assert rig.lookups.look(b"a", "r") is False


def test_a_store_that_cannot_be_asked_has_nothing() -> None:
    rig = Rig()
    rig.takes = False
    rig.lookups.look(b"a", "r")
    rig.lookups.flush()
    assert rig.lookups.look(b"a", "r") is False


def test_what_a_caller_knows_better_counts() -> None:
    rig = Rig()
    rig.lookups.look(b"a", "r")
    rig.lookups.flush()
    rig.lookups.mark([b"a", b"never asked"], False)
    rig.answer(True)
    assert rig.lookups.look(b"a", "r") is False and len(rig.lookups) == 1
