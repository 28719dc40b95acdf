"""Read the dashboard's newest facts about a job's training, from its `/api/jobs`."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from elastic.client.ages import age, duration


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """The newest facts about a job's training. None means that a fact is unknown."""

    uid: str
    is_over: bool = False
    world: int | None = None
    step: int | None = None
    stepped_at: str = ""
    """The time of that step; empty if nobody knows it."""
    step_due_s: float | None = None
    """Seconds after which the next step is late."""
    rate: float | None = None
    unit: str = "steps"
    """The unit of `rate` in one second: samples, tokens or steps."""
    loss: float | None = None
    percent: int | None = None
    remaining_s: float | None = None
    stepped_ago: str = ""
    """How long the step was ago, if the next one is late."""

    def at(self, now: datetime) -> Sample:
        """Return what still holds at this time: the speed and the remaining time do not if the next step is late."""
        if self.step_due_s is None or not _seconds(self.stepped_at, now) > self.step_due_s:
            return self
        return msgspec.structs.replace(self, rate=None, remaining_s=None, stepped_ago=age(self.stepped_at, now))

    @property
    def last_step(self) -> str:
        """Return the step, and how long ago it was if the next one is late; empty if no step is known."""
        if self.step is None:
            return ""
        return f"{self.step}, {self.stepped_ago} ago" if self.stepped_ago else str(self.step)

    @property
    def speed(self) -> str:
        return "" if self.rate is None else f"{shortened(self.rate)} {self.unit}/s"

    @property
    def left(self) -> str:
        """The remaining time in words; empty if it is unknown."""
        return "" if self.remaining_s is None else duration(self.remaining_s)

    @property
    def progress(self) -> str:
        """The facts in words; empty if nothing was reported."""
        parts = [
            f"step {self.last_step}" if self.last_step else "",
            self.speed,
            f"loss {shortened(self.loss)}" if self.loss is not None else "",
            f"{self.percent} %" if self.percent is not None else "",
            f"{self.left} left" if self.left else "",
        ]
        return ", ".join(part for part in parts if part)


_decoder = msgspec.json.Decoder(list[Sample])


def samples(body: bytes) -> dict[str, Sample]:
    """Return the samples by the uid of the job, as of now. Raise ValueError if no dashboard sends this."""
    now = datetime.now(UTC)
    return {sample.uid: sample.at(now) for sample in _decoder.decode(body)}


def _seconds(stamp: str, now: datetime) -> float:
    try:
        return (now - datetime.fromisoformat(stamp)).total_seconds()
    except (ValueError, TypeError):  # no time, or one without a time zone
        return 0.0


def shortened(value: float) -> str:
    """Return the number with three significant digits, or with all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
