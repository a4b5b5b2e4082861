"""Steps in flight in an incident: what was launched, what failed, what came with a commit; all again, as numbers."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, Plan, Request, TierConfig
from quire.incidents import Incident, IncidentPlayer, Incidents, LoosePlayer, load
from quire.incidents.play.findings import find_out
from tests.incidents.lives import state_of

SIZE, SECRET = 4, 77_000


def made(folder: Path, slots: int = 64, **options: Any) -> tuple[Cache, Incidents]:
    incidents = Incidents(folder, thread=False, apart=False)
    config = CacheConfig([TierConfig("device", slots)], SIZE, max_sequences=8, max_length=64, **options)
    return Cache(config, clock=lambda: 0.0, watchers=[incidents]), incidents


def text(*tokens: int) -> Any:
    return (SECRET + np.array(tokens)).astype(np.int32)


def prompt(count: int) -> Any:
    return text(*range(count))


def admitted(cache: Cache, *requests: Request) -> Any:
    batch = cache.add_sequence_batch(requests)
    cache.finish(batch.plan)
    assert not batch.refused
    return batch.sequences


def grown(cache: Cache, many: Any, *given: Any, **named: Any) -> None:
    plan = cache.grow(many, *given, **named)
    assert isinstance(plan, Plan)
    cache.finish(plan)


def played(cache: Cache, incidents: Incidents) -> Incident:
    """What was saved, after it was played to the same state."""
    incident = load(incidents.save())
    player = IncidentPlayer(incident)
    assert player.run() == len(incident.calls) and state_of(player.cache) == state_of(cache)
    return incident


def decoded_ahead(cache: Cache, name: str, answers: list[int]) -> None:
    """A step is launched before the one before it is committed; the token of each comes with its commit."""
    (one,) = admitted(cache, Request(name, prompt(6)))
    flying = deque([cache.launch()])
    for answer in answers:
        grown(cache, one)
        flying.append(cache.launch([one]))
        cache.commit(flying.popleft(), tokens=text(answer))
    cache.release(one)
    cache.commit(flying.popleft(), tokens=text(answers[-1]))


def test_tokens_that_come_with_commits_are_numbered_like_others(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    decoded_ahead(cache, "a", [100, 101, 102])
    decoded_ahead(cache, "b", [100, 90, 102])
    (again,) = admitted(cache, Request("c", np.concatenate([prompt(6), text(100, 101, 500)])))
    assert again.start == 2 * SIZE
    calls = played(cache, incidents).calls
    come = [call[3][-1] for call in calls if call[0] == "commit_step"]
    assert come == [[[1], [name]] for name in ([-1], [1], [-1], [-1], [-1], [-1], [-1], [-1])]
    assert last_asked(calls)["tokens"] == [-7, 1, 1]
    assert max(numbers_in([call[3] for call in calls])) < 100


def last_asked(calls: Any) -> Any:
    """The last request that was admitted."""
    return [call[3][0][0][3] for call in calls if call[0] == "add"][-1]


def numbers_in(some: Any) -> list[float]:
    """Every number in lists and mappings."""
    if isinstance(some, list | dict):
        return [number for one in (some.values() if isinstance(some, dict) else some) for number in numbers_in(one)]
    return [some] if isinstance(some, int | float) else []


def test_a_commit_without_a_launch_brings_tokens_too(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    many = admitted(cache, Request("a", prompt(6)), Request("b", prompt(5)))
    cache.commit(many, tokens=np.concatenate([text(9), np.array([-1], np.int32)]))
    grown(cache, many, num_tokens=np.array([2, 1], np.int32))
    rows = np.array([one.row for one in many], np.int32)
    new = np.concatenate([text(3, 4), np.array([-5], np.int32), text(8, 8), np.array([-5], np.int32)]).reshape(2, 3)
    cache.commit(rows, np.array([8, 6], np.int32), tokens=new)
    cache.commit(rows, tokens=np.full((2, 0), 7, np.int32))
    come = [call[3] for call in played(cache, incidents).calls if call[0] == "commit"]
    assert [given[2] for given in come] == [[[1, 0], [[-1]]], [[2, 2], [[-1, 1], [-2]]], [[0, 0], []]]
    assert [one.length for one in many] == [9, 7]


def test_drafts_of_unequal_length_are_taken_back_again(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    many = admitted(cache, Request("a", prompt(6)), Request("b", prompt(9)), Request("c", text(60)))
    cache.commit(many)
    grown(cache, many, text(1, 2, 3, 7), num_tokens=np.array([3, 0, 1], np.int32))
    step = cache.launch(many[::2])
    cache.commit(step, np.array([7, 2], np.int32))
    cache.trim(many, np.array([2, 0, 0], np.int32))
    cache.trim(np.array([many[0].row], np.int32), 0)
    grown(cache, many[:1], text(5))
    grown(cache, many[1], text(1, 1, 1))
    cache.commit(many[0])
    cache.release(many[0])
    (again,) = admitted(cache, Request("d", np.concatenate([prompt(6), text(1, 5, 9)])))
    assert again.start == 2 * SIZE  # what it is now, not what the drafts were
    calls = played(cache, incidents).calls
    assert [call[3][2] for call in calls if call[0] == "grow"] == [[3, 0, 1], 1, 1]
    assert [call[3] for call in calls if call[0] == "trim"] == [[[0, 1, 2], [2, 0, 0]], [["rows", 0], 0]]


def test_steps_that_failed_fail_again(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    one, other = admitted(cache, Request("a", prompt(6)), Request("b", prompt(5)))
    first = cache.launch()
    grown(cache, [one, other])
    second = cache.launch(np.array([other.row, one.row], np.int32))
    grown(cache, one, num_tokens=2)
    cache.launch(one)
    cache.commit(first, tokens=text(1, 2))
    cache.release(other, store=False)
    assert [back.holder for back in cache.fail(second)] == [one]
    grown(cache, one)
    last = cache.launch()
    incident = played(cache, incidents)
    assert [call[0] for call in incident.calls if call[0] in ("launch", "commit_step", "fail")] == [
        "launch", "launch", "launch", "commit_step", "fail", "launch",
    ]  # fmt: skip
    assert [(what, number) for what, number, _ in find_out(incident).left_open] == [("step", last.number)]


def test_what_is_shared_while_it_is_computed_is_so_again(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path, share_pending=True)
    (one,) = admitted(cache, Request("a", prompt(10)))
    first = cache.launch()
    two, three = admitted(cache, Request("b", prompt(10)), Request("c", prompt(9)))
    assert (two.start, three.start) == (2 * SIZE, 2 * SIZE)
    cache.commit(first, tokens=text(1))
    grown(cache, one)
    second = cache.launch()
    (four,) = admitted(cache, Request("d", np.concatenate([prompt(8), text(70, 71, 72, 73, 74)])))
    third = cache.launch([four])
    (five,) = admitted(cache, Request("e", np.concatenate([prompt(8), text(70, 71, 72, 73, 74)])))
    assert five.start == 3 * SIZE
    assert [(back.holder, back.lost) for back in cache.fail(third)] == [(four, False), (five, False)]
    cache.commit(second)
    incident = played(cache, incidents)
    assert incident.config.share_pending


def test_a_token_of_a_row_that_lost_its_page_is_nowhere(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    one, other = admitted(cache, Request("a", prompt(6)), Request("b", text(50, 51)))
    step = cache.launch()
    cache.lose(0, one.slots()[:1].tolist())
    cache.commit(step, tokens=text(1, 2))
    assert (one.length, other.length) == (6, 3)
    incident = played(cache, incidents)
    assert [call[3][-1] for call in incident.calls if call[0] == "commit_step"] == [[[0, 1], [[-1]]]]


def test_what_is_cleared_to_be_stored_again_is_so_again(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    (one,) = admitted(cache, Request("a", prompt(10)))
    cache.commit(one)
    cache.clear(store_again=True)
    grown(cache, one, text(1))
    cache.commit(one)
    cache.release(one)
    (again,) = admitted(cache, Request("b", prompt(10), redo_blocks=1))
    assert again.start == 2 * SIZE
    calls = played(cache, incidents).calls
    assert [call[3] for call in calls if call[0] == "clear"] == [[True]]
    assert last_asked(calls)["redo_blocks"] == 1


def test_a_step_that_is_not_in_flight_is_no_part_of_an_incident(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    admitted(cache, Request("a", prompt(6)))
    cache.commit(cache.launch())
    incident = load(incidents.save())
    calls = [list(call) for call in incident.calls]
    calls[-1][3] = [7, *calls[-1][3][1:]]
    player = IncidentPlayer(Incident("", "", incident.config, calls))
    with pytest.raises(InputError, match="what it names is not there"):
        player.run()


def test_a_smaller_cache_preempts_what_has_no_room_for_tokens_that_come(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    for nth in range(3):
        many = admitted(cache, Request(f"a{nth}", prompt(9)), Request(f"b{nth}", text(*range(50, 60))))
        flying = deque([cache.launch()])
        for answer in range(12):
            grown(cache, many)
            flying.append(cache.launch())
            cache.commit(flying.popleft(), tokens=text(answer, answer + 1))
        cache.fail(flying.popleft())
        cache.release(many)
    incident = played(cache, incidents)
    outcome = LoosePlayer(incident.config).play(incident.calls)
    assert (outcome.admitted, outcome.preempted, outcome.skipped) == (6, 0, 0)
    assert outcome.hit_tokens == sum(one.hit_tokens for one in find_out(incident).stretches) > 0
    small = CacheConfig([TierConfig("device", 8)], SIZE, max_sequences=8, max_length=64)
    outcome = LoosePlayer(small).play(incident.calls)
    assert outcome.admitted == 6 and outcome.preempted > 0 and outcome.skipped == 0
