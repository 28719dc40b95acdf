"""Decides which samples belong to which step and rank: a pure function of the number of committed steps.

The samples stand in an endless row: the permutation of epoch 0, then that of epoch 1, and so on. Step k takes the next `batch` places of
the row, also across the end of an epoch. So every sample is used exactly once per epoch, at every size of the world.

Any place of the row is computed without the places before it. So a newcomer, whose peers wait for it, need not shuffle the dataset first.
"""

import contextlib
import hashlib
import random
import sys
import typing

import torch

AHEAD = 2048
"""Samples of a rank that are computed at once."""
KEPT_BLOCKS = 2
"""The loader asks for steps ahead, so two places of the row are read alternately."""
ROUNDS = 10
"""Rounds of the permutation. With six, orders of a few samples are not equally frequent."""
FIRST, SECOND = -0x61C8864680B583EB, -0x4B47D0C54D4DA3B5
"""Odd factors of 64 bits whose products spread every bit of the other factor."""


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
        self._blocks = []  # type: typing.List[_Block]

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
        if rank >= self.batch:
            return []
        begin = self.position(step) + rank
        ids = self._block(step, rank, size).ids[step].tolist()
        return [Place((begin + size * number) // self.length, id) for number, id in enumerate(ids)]

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
        self._blocks.clear()

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
        self._blocks.clear()

    def _block(self, step: int, rank: int, size: int) -> "_Block":
        """Return the share of this step, with those of some steps after it, because one by one they cost several times more."""
        for block in self._blocks:
            if (block.rank, block.size) == (rank, size) and step in block.ids:
                return block
        share = torch.arange(rank, self.batch, size)
        count = max(1, min(AHEAD // len(share), self.length // self.batch))
        first = self.position(step) + self.batch * torch.arange(count)
        ids = self._samples((first[:, None] + share).flatten()).reshape(count, len(share))
        self._blocks = [*self._blocks[1 - KEPT_BLOCKS :], _Block(rank, size, {step + number: row for number, row in enumerate(ids)})]
        return self._blocks[-1]

    def _samples(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the samples at ascending positions of the row."""
        if not self._shuffle:
            return positions % self.length
        epochs = positions // self.length
        parts = [
            permuted(positions[epochs == epoch] % self.length, self.length, seed=self.seed, epoch=epoch)
            for epoch in range(int(epochs[0]), int(epochs[-1]) + 1)
        ]
        return torch.cat(parts)


class _Block(typing.NamedTuple):
    """The shares of one rank in consecutive steps."""

    rank: int
    size: int
    ids: "typing.Dict[int, torch.Tensor]"


def permuted(places: torch.Tensor, length: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return the samples at these places of an epoch's permutation of range(length).

    A Feistel network permutes the next power of two. A value that is too large is permuted again until it is small enough.
    """
    bits = max(2, (length - 1).bit_length())
    keys = [_mixed(seed, epoch, number) for number in range(-1 - ROUNDS, -1)]  # sample_generator uses the numbers from -1 on
    found = _network(places, bits, keys)
    while True:
        (large,) = torch.nonzero(found >= length, as_tuple=True)
        if not len(large):
            return found
        found[large] = _network(found[large], bits, keys)


def _network(values: torch.Tensor, bits: int, keys: "typing.Sequence[int]") -> torch.Tensor:
    low = bits // 2
    high = bits - low
    left, right = values >> low, values & ((1 << low) - 1)
    for key in keys:  # an even number of rounds, because each one exchanges the widths
        mixed = (right ^ key).mul_(FIRST)
        mixed = (mixed >> 32).bitwise_xor_(mixed).mul_(SECOND)
        left, right = right, mixed.bitwise_right_shift_(32).bitwise_and_((1 << high) - 1).bitwise_xor_(left)
        low, high = high, low
    return (left << low) | right


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


def seed_by_sample(seed: int, epoch: int, id: int) -> None:
    """Seed the global generators of torch (CPU), `random` and numpy for one sample."""
    number = _mixed(seed, epoch, id)
    torch.default_generator.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(number % 2**32)


@contextlib.contextmanager
def kept_generators() -> "typing.Iterator[None]":
    """Restore the global generators afterwards. This costs more than seeding, so do it for many samples at once."""
    numpy = sys.modules.get("numpy")
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None
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
