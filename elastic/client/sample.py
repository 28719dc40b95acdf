"""Read what the dashboard last heard of a job's training, as its `/api/jobs` sends it. Pure."""

from __future__ import annotations

import msgspec

from elastic.client.ages import duration


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """The newest facts about a job's training. None means that a fact is unknown."""

    uid: str
    is_over: bool = False
    world: int | None = None
    step: int | None = None
    rate: float | None = None
    unit: str = "steps"
    """The unit of `rate` in one second: samples, tokens or steps."""
    loss: float | None = None
    percent: int | None = None
    remaining_s: float | None = None

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
            f"step {self.step}" if self.step is not None else "",
            self.speed,
            f"loss {shortened(self.loss)}" if self.loss is not None else "",
            f"{self.percent} %" if self.percent is not None else "",
            f"{self.left} left" if self.left else "",
        ]
        return ", ".join(part for part in parts if part)


_decoder = msgspec.json.Decoder(list[Sample])


def samples(body: bytes) -> dict[str, Sample]:
    """Return the samples by the uid of the job. Raise ValueError if no dashboard sends this."""
    return {sample.uid: sample for sample in _decoder.decode(body)}


def shortened(value: float) -> str:
    """Return the number with three significant digits, or with all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
