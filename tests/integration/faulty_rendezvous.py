"""A rendezvous server whose engine raises in as many decisions about the job `job` as the file named in FAULTS says."""

import os
from collections.abc import Iterable
from pathlib import Path

from elastic_training.rendezvous import main
from elastic_training.rendezvous.engine.events import Event
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.step import Effect, step_all
from elastic_training.rendezvous.server import hub


def faulty(job: JobState, events: Iterable[Event], now: float) -> tuple[JobState, tuple[Effect, ...]]:
    path = Path(os.environ["FAULTS"])
    left = int(path.read_text() or 0) if path.exists() else 0
    if job.uid == "job" and left:
        draft = path.with_suffix(".left")
        draft.write_text(str(left - 1))
        draft.replace(path)  # the test must not read the file while it is empty
        raise AssertionError("a bug in the engine")
    return step_all(job, events, now)


hub.Hub.step_all = staticmethod(faulty)

if __name__ == "__main__":
    main.main()
