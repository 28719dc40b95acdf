"""Decides which samples belong to which step and rank: a pure function of the number of committed steps.

The samples stand in an endless row: the permutation of epoch 0, then that of epoch 1, and so on. Step k takes the next `batch` places of
the row, also across the end of an epoch. So every sample is used exactly once per epoch, at every size of the world.
"""

import contextlib
import hashlib
import random
import sys
import typing

import torch

KEPT_EPOCHS = 2
"""Number of permutations in memory: a batch may lie across two epochs."""


class Place(typing.NamedTuple):
    """A sample of the row: the number of the epoch, and the index in the dataset."""

    epoch: int
    id: int


class Sampler:
    """The row of samples of a job. Its state is the same on all ranks.

    `state_dict` says where the row was cut into batches, so save it with the model and send it to newcomers.
    """

    def __init__(self, length: int, batch: int, *, seed: int = 0, shuffle: bool = True) -> None:
        if length < 1:
            raise ValueError(f"The dataset has {length} samples. Training needs at least one.")
        _check_batch(batch)
        self.length = length
        self.batch = batch
        """Samples of one step, of all ranks together."""
        self.seed = seed
        self._shuffle = shuffle
        self._since = (0, 0)
        """A step, and its first position in the row: `batch` holds from there on."""
        self._orders = {}  # type: typing.Dict[int, torch.Tensor]

    def ids(self, step: int) -> "typing.List[int]":
        """Return the dataset indices of a step, of all ranks together."""
        return [place.id for place in self.places(step, 0, 1)]

    def share(self, step: int, rank: int, size: int) -> "typing.List[int]":
        """Return the dataset indices of one rank.

        Shares are disjoint, and their lengths differ by at most one. If size > batch, some are empty.
        """
        return [place.id for place in self.places(step, rank, size)]

    def places(self, step: int, rank: int, size: int) -> "typing.List[Place]":
        """Return the share of one rank with the epochs of its samples."""
        if not 0 <= rank < size:
            raise ValueError(f"The rank is {rank}, but the world has {size} workers.")
        begin = position = self.position(step)
        found = []  # type: typing.List[Place]
        while position < begin + self.batch:
            epoch, offset = divmod(position, self.length)
            count = min(begin + self.batch - position, self.length - offset)
            first = (rank - (position - begin)) % size
            found += [Place(epoch, id) for id in self._order(epoch)[offset : offset + count][first::size].tolist()]
            position += count
        return found

    def position(self, step: int) -> int:
        """Return how many places of the row lie before a step."""
        if step < self._since[0]:
            raise ValueError(f"Step {step} lies before step {self._since[0]}, where the batch became {self.batch}.")
        return self._since[1] + (step - self._since[0]) * self.batch

    def epoch(self, step: int) -> int:
        """Return the epoch of the first sample of a step."""
        return self.position(step) // self.length

    def rebatch(self, step: int, batch: int) -> None:
        """Take another global batch from a step on. No sample is repeated or left out. All ranks must do it at the same step."""
        _check_batch(batch)
        self._since, self.batch = (step, self.position(step)), batch

    def state_dict(self) -> "typing.Dict[str, typing.Any]":
        """Return the state: small, and the same on all ranks."""
        return {"length": self.length, "batch": self.batch, "seed": self.seed, "shuffle": self._shuffle, "since": list(self._since)}

    def load_state_dict(self, state: "typing.Mapping[str, typing.Any]") -> None:
        """Continue the row of a save, with its seed and batch. Call `rebatch` afterwards to keep another batch.

        Raise ValueError if the dataset has another length, because the row of the save cannot be continued.
        """
        if state["length"] != self.length:
            found = f"The dataset has {self.length} samples, but the saved state was trained with {state['length']}."
            raise ValueError(f"{found} Use the same dataset, or an empty folder for saves.")
        self.batch, self.seed, self._shuffle = state["batch"], state["seed"], state["shuffle"]
        self._since = (state["since"][0], state["since"][1])
        self._orders.clear()

    def _order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._orders:
            if len(self._orders) >= KEPT_EPOCHS:
                del self._orders[min(self._orders)]
            kind = torch.int32 if self.length < 2**31 else torch.int64
            generator = sample_generator(self.seed, epoch)
            self._orders[epoch] = (
                torch.randperm(self.length, generator=generator, dtype=kind) if self._shuffle else torch.arange(self.length, dtype=kind)
            )
        return self._orders[epoch]


def _check_batch(batch: int) -> None:
    if batch < 1:
        raise ValueError(f"The global batch is {batch}. It must be at least 1.")


def weight(samples: int, batch: int, size: int) -> float:
    """Return the factor for the mean loss over a micro-batch, so that all ranks together average over the global batch.

    DDP and FSDP divide the sum of gradients by the size of the world. Therefore the factor contains the size.
    """
    return samples * size / batch


def sample_generator(seed: int, epoch: int, id: int = -1) -> torch.Generator:
    """Return a generator for one sample of one epoch: its numbers do not depend on rank, loader worker, or size of the world."""
    return torch.Generator().manual_seed(_mixed(seed, epoch, id))


@contextlib.contextmanager
def seeded_by_sample(seed: int, epoch: int, id: int) -> "typing.Iterator[None]":
    """Seed the global generators of torch (CPU), `random` and numpy for one sample, and restore them afterwards."""
    number = _mixed(seed, epoch, id)
    numpy = sys.modules.get("numpy")
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None
    torch.default_generator.manual_seed(number)
    random.seed(number)
    if numpy:
        numpy.random.seed(number % 2**32)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        if numpy:
            numpy.random.set_state(before[2])


def _mixed(seed: int, epoch: int, id: int) -> int:
    digest = hashlib.blake2b(f"{seed} {epoch} {id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
