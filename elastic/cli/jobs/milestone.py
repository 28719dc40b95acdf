"""What a job that nothing keeps waits for: its first step or its end; and how far it is, where a laptop's dashboard knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastic.cli.jobs.found import Found
from elastic.client.live import NoAnswer, ask, of_laptop
from elastic.client.sample import Sample
from elastic.client.summary import summary
from elastic.kube.following import Happening, Line
from elastic.local.files import Layout


@dataclass(frozen=True, slots=True)
class Wait:
    """What it does or waits for, and how far it is. The second changes all the time, and is no news by itself."""

    words: str = ""
    progress: str = ""
    has_steps: bool = False
    """Whether its training tells of steps, as far as is known."""

    def __str__(self) -> str:
        return f"{self.words}; {self.progress}" if self.progress else self.words


@dataclass(slots=True)
class Milestone:
    """Of one job."""

    data_dir: Path | None
    """Of the laptop cluster that it runs on."""
    has_begun: bool = False
    """Whether its program has said anything."""

    def hear(self, happening: Happening) -> None:
        self.has_begun = self.has_begun or isinstance(happening, Line)

    async def ahead(self, job: Found) -> Wait:
        told = summary(job.kind, job.object)
        if told.is_over:
            return Wait("waits for the last of its output")
        sample = await self._sample(job.key.uid)
        workers = f"{told.running} of {told.wanted} workers run"
        if told.world and not self.has_begun and (sample is None or sample.step is None):
            return Wait("waits for its first step", workers)
        progress = sample.progress if sample is not None and sample.progress else workers
        return Wait("trains on" if told.world else "runs on", progress, has_steps=sample is not None and sample.step is not None)

    async def _sample(self, uid: str) -> Sample | None:
        laptops = of_laptop(Layout(self.data_dir)) if self.data_dir is not None else None
        try:
            return None if laptops is None else (await ask(laptops)).get(uid)
        except NoAnswer:
            return None
