"""LiveRuns: the runs inside an engine, their listeners, and how they and their branches end. Runs no step."""

from __future__ import annotations

from collections.abc import Callable

from quire.engine.deadlines.deadline_side import DeadlineSide
from quire.engine.memory.connector_side import ConnectorSide
from quire.engine.memory.shared_side import SharedSide
from quire.engine.runner.run_recorder import RunRecorder
from quire.engine.step.runs.branch import Branch, Finish, Run
from quire.engine.step.runs.tenant import Together
from quire.engine.step.schedule import Scheduler


class LiveRuns:
    """Runs by their id, until they are done."""

    def __init__(self, scheduler: Scheduler, connector_side: ConnectorSide, clock: Callable[[], float]) -> None:
        self._scheduler, self._connector_side, self._clock = scheduler, connector_side, clock
        self.inside: dict[object, Run] = {}
        self.recording: RunRecorder | None = None
        self.deadlines: DeadlineSide | None = None  # which looks at each run that is over, if there is one
        self.shared_side: SharedSide | None = None  # where answers that are complete are stored, if anywhere

    def enter(self, run: Run, tenant: str | Together | None) -> None:
        """A run has come: it takes its turns as this tenant."""
        self.inside[run.id] = run
        self._scheduler.rounds.enter(run, tenant)
        if self.recording is not None:
            self.recording.submitted(run)

    def tell(self, run: Run, answer: int, tokens: list[int]) -> bool:
        """Whether its listener wants no more; one that fails costs its own run only."""
        if run.listener is None:
            return False
        try:
            return run.listener.hear(run, answer, tokens)
        except Exception as error:
            run.answers[answer].finish = None  # its listener has not heard its end
            self.fail(run, f"its listener failed: {type(error).__name__}: {error}")
            return False

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, branch: Branch, store: bool = True) -> None:
        """It generates no more."""
        self._scheduler.queues.remove(branch)
        branch.run.branches.remove(branch)
        if branch.sequence is not None:
            self.let_go(branch, store)

    def let_go(self, branch: Branch, store: bool) -> None:
        """Give up its pages; `store`: what it computed stays findable."""
        sequence, branch.sequence = branch.sequence, None
        assert sequence is not None
        self._connector_side.release(sequence, store, branch.back)
        if store and self.shared_side is not None:
            self.shared_side.served(branch)

    def fail(self, run: Run, why: str) -> None:
        """End it with an error; nothing that it has not committed is kept."""
        run.error = why
        self.stop(run, "error")

    def give_up(self, run: Run, why: str) -> None:
        """End it with an error after a fault: its pages are left as they are."""
        run.error = why
        for branch in run.branches:
            branch.end_prefetch()
        run.branches.clear()
        self.stop(run, "error")

    def stop(self, run: Run, finish: Finish) -> None:
        """End it where it is."""
        for branch in list(run.branches):
            self.end(branch, store=False)
        for answer in run.answers:
            answer.finish = answer.finish or finish
        self.finish(run)

    def finish(self, run: Run) -> None:
        """It has no branch any more: its answers are final."""
        run.done = True
        run.times.finished = self._clock()
        if self.inside.pop(run.id, None) is not None:
            self._scheduler.rounds.leave(run)
        if self.recording is not None:
            self.recording.finished(run)
        if self.deadlines is not None:
            self.deadlines.finished(run)
        if run.listener is not None:
            try:
                run.listener.over(run)
            except Exception as error:  # its own run is over in any case
                run.error = run.error or f"its listener failed: {type(error).__name__}: {error}"
