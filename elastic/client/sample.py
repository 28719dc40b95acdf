"""What the dashboard last heard of a job's training. Pure: it reads what the dashboard's `/api/jobs` sends."""

from __future__ import annotations

import msgspec


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """None: not known."""

    uid: str
    is_over: bool = False
    world: int | None = None
    step: int | None = None
    rate: float | None = None
    unit: str = "steps"
    """What `rate` counts a second: samples, tokens or steps."""
    loss: float | None = None

    @property
    def speed(self) -> str:
        return "" if self.rate is None else f"{shortened(self.rate)} {self.unit}/s"

    @property
    def progress(self) -> str:
        """In words; empty where nothing was reported."""
        parts = [
            f"step {self.step}" if self.step is not None else "",
            self.speed,
            f"loss {shortened(self.loss)}" if self.loss is not None else "",
        ]
        return ", ".join(part for part in parts if part)


_decoder = msgspec.json.Decoder(list[Sample])


def samples(body: bytes) -> dict[str, Sample]:
    """By the uid of the job; ValueError for what a dashboard does not send."""
    return {sample.uid: sample for sample in _decoder.decode(body)}


def shortened(value: float) -> str:
    """Three digits that count; more before the point are kept."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
