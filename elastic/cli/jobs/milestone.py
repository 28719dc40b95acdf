"""Tell how far a job is that nothing keeps: a laptop's dashboard knows its steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastic.client.live import NoAnswer, ask, of_laptop
from elastic.client.sample import Sample
from elastic.client.summary import summary
from elastic.client.verbs import Found
from elastic.kube.following import Happening, Line
from elastic.local.files import Layout


@dataclass(frozen=True, slots=True)
class Wait:
    """The activity of a job, and how far it is. Its progress changes all the time, and is no news by itself."""

    words: str = ""
    """The words have no times, so that they stay the same as long as nothing happens."""
    timed: str = ""
    """The same words with the times of now, if there are any."""
    progress: str = ""
    has_steps: bool = False
    """Its training is known to report steps."""

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.timed or self.words, self.progress)))


@dataclass(slots=True)
class Milestone:
    """The next milestone of one job."""

    data_dir: Path | None
    """The folder of the laptop cluster on which it runs."""
    has_begun: bool = False
    """Its program has said something."""

    def hear(self, happening: Happening) -> None:
        self.has_begun = self.has_begun or isinstance(happening, Line)

    async def ahead(self, job: Found) -> Wait:
        told = summary(job.kind, job.object)
        if told.is_over:
            return Wait("waits for the last of its output")
        sample = await self._sample(job.key.uid)
        workers = f"{told.running} of {told.wanted} workers run"
        if told.world and not self.has_begun and (sample is None or sample.step is None):
            return Wait("has reported no step yet", progress=workers)
        has_steps = sample is not None and sample.step is not None
        progress = sample.progress if sample is not None and sample.progress else workers
        trains = told.world and has_steps and sample is not None and not sample.stepped_ago
        return Wait("trains on" if trains else "runs on", progress=progress, has_steps=has_steps)

    async def _sample(self, uid: str) -> Sample | None:
        laptops = of_laptop(Layout(self.data_dir)) if self.data_dir is not None else None
        try:
            return None if laptops is None else (await ask(laptops)).get(uid)
        except NoAnswer:
            return None
