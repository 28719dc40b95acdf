"""Define how simulated agents end by themselves, and an agent that ends at once because its command is wrong."""

import asyncio
import random
from dataclasses import dataclass
from typing import Protocol

from elastic_training.rendezvous.delivery import USAGE


class Ended(Protocol):
    def __call__(self, code: int, *, unmet: str = "") -> None:
        """Hear that the agent ended by itself with this code. `unmet` begins its message if it did not meet the others."""


@dataclass(eq=False, slots=True)
class WrongCommand:
    """torchrun with arguments that it does not know: it ends before it comes to the rendezvous."""

    draw: random.Random
    ended: Ended
    is_over: bool = False
    entered: tuple[int, ...] = ()

    def start(self) -> None:
        asyncio.get_running_loop().call_later(self.draw.uniform(0.2, 2.0), self._exit)

    def stop(self, *, says_so: bool) -> None:
        self.is_over = True

    def fail(self, *, generation: int | None = None) -> bool:
        return False

    def finish(self) -> None:
        """Do nothing, because it does not train."""

    def _exit(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended(2, unmet=f"{USAGE}: torchrun: error: unrecognized arguments: --nonsense")
