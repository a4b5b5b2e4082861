"""RunRecorder: the runs of an engine, told to a TraceRecorder: submission is arrival, the last token is the end.

Of several answers the first one says why it ended, and when its text comes back.
"""

from __future__ import annotations

from quire.engine.step.runs.branch import Run
from quire.trace.record.recorder import ArrivedRequest, TraceRecorder


class RunRecorder:
    """Keeps when every run came, while it is inside the engine."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self.recorder = recorder
        self._open: dict[object, ArrivedRequest] = {}

    def submitted(self, run: Run) -> None:
        """A run has come."""
        self._open[run.id] = self.recorder.arrive()

    def finished(self, run: Run) -> None:
        """It is over, one way or another; one that came before the recording began is not in it."""
        arrived = self._open.pop(run.id, None)
        if arrived is not None:
            made = sum(len(answer.tokens) for answer in run.answers)
            request, first = run.request, run.answers[0]
            self.recorder.add(
                arrived, request.tokens, made, request.scope, session=request.session, finish=first.reason,
                back=run.back_of(0),
            )  # fmt: skip
