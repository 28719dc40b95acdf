"""Loads the samples of this rank, and asks again for the right ones if the share of this rank changes.

    loader = Loader(dataset, Sampler(len(dataset), 256, seed=1), micro_batch=32, workers=4)
    for micro in loader.batches(step, rank, size):
        x, y = micro.values

Loader workers are started once, and stay over all worlds. Start them (`Loader.start`) before the process group exists: a process that is
forked later inherits the group's sockets and would keep them open.
"""

import itertools
import multiprocessing
import os
import threading
import typing

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import default_collate as collate_samples

from elastic_worker.training import mistakes
from elastic_worker.training.sampler import Place, Sampler, kept_generators, seed_by_sample, weight

OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "collate_fn", "num_workers", "drop_last", "persistent_workers", "generator")
"""Arguments of DataLoader that this module decides itself."""
Collate = typing.Callable[["typing.List[typing.Any]"], typing.Any]
Request = typing.Tuple[int, int, "typing.Sequence[Place]"]
"""A ticket, the seed, and the samples of a micro-batch."""
NOTHING = (0, 0, ())  # type: Request


class Micro(typing.NamedTuple):
    """A micro-batch of this rank."""

    values: typing.Any
    """The output of the collate function, for example `(x, y)`."""
    samples: int
    """Number of samples that count. It is 0 for the stand-in of a rank whose share is empty."""
    scale: float
    """Factor for the mean loss over this micro-batch; see `sampler.weight`."""
    is_last: bool
    """Whether this is the last micro-batch of the step, whose backward reduces the gradients."""


def check(dataset: typing.Any) -> None:
    """Raise TypeError if the samples of this dataset have no numbers."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"{type(dataset).__name__} has no __getitem__, so nobody can say which samples were used before a change of the world. "
            "Use a map-style dataset: then every sample is used exactly once per epoch. "
            "For a stream, read it yourself inside the step and shard it by run.rank and run.size; samples may repeat or get lost."
        )


class Loader:
    """Micro-batches of any step for any share, in order, with prefetching if there are workers.

    Each `dataset[i]` runs with torch, `random` and numpy seeded by (seed, epoch, i). So random augmentation depends on the sample, and not
    on the rank, the worker or the size of the world.
    """

    def __init__(
        self,
        dataset: "typing.Any",
        sampler: Sampler,
        *,
        micro_batch: typing.Optional[int] = None,
        collate: typing.Optional[Collate] = None,
        workers: int = 0,
        **options: typing.Any,
    ) -> None:
        """Take a map-style dataset. `options` go to DataLoader, for example pin_memory, prefetch_factor, timeout, worker_init_fn.

        micro_batch: most samples of one micro-batch; by default the whole share is one.
        """
        check(dataset)
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"micro_batch is {micro_batch}. It must be at least 1.")
        refused = sorted(set(options) & set(OURS))
        if refused:
            raise TypeError(f"The loader decides {', '.join(refused)} itself. Use batch, micro_batch, collate and workers.")
        self.sampler = sampler
        self.is_even = False
        """Whether all ranks get the same number of micro-batches: shards of a model must run each forward together."""
        self._micro_batch = micro_batch
        self._ticket = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        """Requests with another ticket are void. Loader workers read it before each sample: a new share need not wait for the old one."""
        self._ahead = itertools.repeat(NOTHING)  # type: typing.Iterator[Request]
        self._next = None  # type: typing.Optional[typing.Tuple[typing.Any, ...]]
        """The step and share that the following results belong to; None inside a step."""
        self._results = None  # type: typing.Optional[typing.Iterator[typing.Tuple[int, typing.Any]]]
        begin = options.pop("worker_init_fn", None)
        self._loader = DataLoader(
            _Fetch(dataset, collate or collate_samples, self._ticket),
            batch_size=None,
            sampler=_Feed(lambda: next(self._ahead)),
            collate_fn=_as_it_is,
            num_workers=workers,
            worker_init_fn=_Begin(begin) if workers else None,
            generator=torch.Generator().manual_seed(sampler.seed % 2**63),  # the program's own generator stays as it is
            **options,
        )  # type: DataLoader[typing.Any]

    def start(self) -> None:
        """Start the loader workers. Call it before the process group exists, so that they inherit none of its sockets."""
        if self._results is None:
            self._results = iter(self._loader)

    def close(self) -> None:
        """End the loader workers."""
        self._results = self._next = None
        self._ahead = itertools.repeat(NOTHING)

    def batches(self, step: int, rank: int, size: int) -> "typing.Iterator[Micro]":
        """Yield the micro-batches of a step. If this is not the share that was fetched ahead, drop that and fetch this one.

        If the share is empty (more ranks than samples), yield one stand-in with scale 0: each rank must run a backward, because the others
        wait for its gradients. The stand-in is a sample of the same step. If `is_even`, stand-ins also follow a share that is too small.
        """
        self.start()
        if self._next != self._key(step, rank, size):
            self._ticket += 1
            self._ahead = self._requests(step, rank, size)
        self._next = None  # if the caller leaves in the middle of the step, the rest is void
        pieces = self._pieces(step, rank, size)
        for number, (samples, _) in enumerate(pieces):
            values, is_last = self._take(), number == len(pieces) - 1
            if is_last:
                self._next = self._key(step + 1, rank, size)
            yield Micro(values, samples, weight(samples, self.sampler.batch, size), is_last)

    def _key(self, step: int, rank: int, size: int) -> "typing.Tuple[typing.Any, ...]":
        return step, rank, size, self.sampler.position(step), self.sampler.batch, self.sampler.seed

    def _take(self) -> typing.Any:
        """Return the next result, past those of void requests."""
        assert self._results is not None
        while True:
            ticket, values = next(self._results)
            if ticket == int(self._ticket):
                return values

    def _pieces(self, step: int, rank: int, size: int) -> "typing.List[typing.Tuple[int, typing.List[Place]]]":
        """Return the micro-batches of a share. Each one has the number of samples that count, which is 0 for a stand-in."""
        places, largest = self.sampler.places(step, rank, size), -(-self.sampler.batch // size)
        most = self._micro_batch or largest
        pieces = [places[begin : begin + most] for begin in range(0, len(places), most)]
        lacking = (-(-largest // most) if self.is_even else 1) - len(pieces)
        stand_in = self.sampler.places(step, 0, self.sampler.batch) if lacking > 0 else []
        return [(len(piece), piece) for piece in pieces] + [(0, stand_in)] * lacking

    def _requests(self, step: int, rank: int, size: int) -> "typing.Iterator[Request]":
        ticket = int(self._ticket)
        while True:
            for _, piece in self._pieces(step, rank, size):
                yield ticket, self.sampler.seed, piece
            step += 1


class _Begin:
    """The begin of a loader worker. It also ends the worker if its process dies.

    DataLoader looks every 5 s whether the parent is another one than at the begin, so a worker whose process dies earlier never ends.
    """

    def __init__(self, begin: "typing.Optional[typing.Callable[[int], typing.Any]]") -> None:
        self._begin = begin

    def __call__(self, number: int) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        threading.Thread(target=_end_with, args=(parent,), name="elastic-loader", daemon=True).start()
        if self._begin is not None:
            self._begin(number)


def _end_with(parent: typing.Any) -> None:
    parent.join()
    os._exit(1)


class _Feed:
    """The requests, as DataLoader asks for them: some ahead of the results."""

    def __init__(self, ask: "typing.Callable[[], Request]") -> None:
        self._ask = ask

    def __iter__(self) -> "typing.Iterator[Request]":
        while True:
            yield self._ask()


class _Fetch(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Micro-batches by request. It runs in the loader workers."""

    def __init__(self, dataset: typing.Any, collate: Collate, ticket: torch.Tensor) -> None:
        self._dataset = dataset
        self._collate = collate
        self._ticket = ticket

    def __getitem__(self, request: Request) -> "typing.Tuple[int, typing.Any]":
        ticket, seed, places = request
        samples = []
        with kept_generators():
            for place in places:
                if int(self._ticket) != ticket:
                    return ticket, None
                seed_by_sample(seed, place.epoch, place.id)
                samples.append(self._dataset[place.id])
        return ticket, self._collate(samples) if samples else None


def _as_it_is(values: typing.Any) -> typing.Any:
    return values


def loader_of(data: typing.Any, batch: int, seed: int) -> Loader:
    """Return the loader of a program's data; raise TypeError if its samples have no numbers."""
    if isinstance(data, Loader):
        if data.sampler.batch != batch:
            raise ValueError("batch is {}, and the Loader's sampler has {}. Give both the same number.".format(batch, data.sampler.batch))
        return data
    check(data)
    mistakes.check_data(len(data), batch)
    return Loader(data, Sampler(len(data), batch, seed=seed))
