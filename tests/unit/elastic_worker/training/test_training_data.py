"""Each sample is used exactly once per epoch, at every size of the world, also if the world changes."""

import concurrent.futures
import os
import random
import signal
import socket
import time

import numpy
import pytest
import torch

from elastic_worker.training import forks
from elastic_worker.training.data import Loader
from elastic_worker.training.sampler import Sampler, permuted, sample_generator, weight

BATCH = 48


class Numbers(torch.utils.data.Dataset):
    """Sample i is (i as a vector, i, random numbers of augmentation)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, tuple[float, float, float]]:
        return torch.full((2,), float(index)), index, (float(torch.rand(())), random.random(), float(numpy.random.rand()))


@pytest.mark.parametrize("length", [1, 7, 48, 100, 1000])
def test_every_sample_is_used_exactly_once_per_epoch(length: int) -> None:
    sampler = Sampler(length, BATCH, seed=3)
    row = [i for step in range(5 * length // BATCH + 1) for i in sampler.ids(step)][: 5 * length]
    for epoch in range(5):
        assert sorted(row[epoch * length : (epoch + 1) * length]) == list(range(length))


def test_epochs_and_seeds_have_different_orders_and_processes_the_same() -> None:
    orders = [tuple(Sampler(1000, 1000, seed=seed).ids(step)) for seed in range(3) for step in range(3)]
    assert len(set(orders)) == 9
    assert tuple(Sampler(1000, 1000, seed=1).ids(2)) == orders[5]


def test_orders_look_random() -> None:
    """Each sample is equally frequent at each place, and so is each distance between neighbours."""
    orders = torch.stack([permuted(torch.arange(10), 10, seed=seed, epoch=3) for seed in range(400)])
    for place in range(10):
        assert all(15 < count < 65 for count in torch.bincount(orders[:, place], minlength=10).tolist())
    distances = torch.bincount((orders[:, 1:] - orders[:, :-1]).flatten() % 10, minlength=10)[1:]
    assert all(320 < count < 480 for count in distances.tolist())
    order = permuted(torch.arange(100_000), 100_000, seed=1, epoch=0).double()
    assert abs(float(torch.corrcoef(torch.stack([order[1:], order[:-1]]))[0, 1])) < 0.01
    assert abs(float(torch.corrcoef(torch.stack([order, torch.arange(100_000).double()]))[0, 1])) < 0.01


@pytest.mark.parametrize("length", [1, 2, 3, 5, 64, 65, 1023, 1024, 1025])
def test_an_order_is_a_permutation_at_every_length(length: int) -> None:
    assert sorted(permuted(torch.arange(length), length, seed=-5, epoch=2).tolist()) == list(range(length))


def test_a_large_dataset_is_not_shuffled_as_a_whole() -> None:
    length = 2**40 + 12345
    ids = Sampler(length, 20_000).ids(30)
    assert len(set(ids)) == 20_000
    assert min(ids) >= 0
    assert length // 2 < max(ids) < length


def test_without_shuffling_the_order_is_that_of_the_dataset() -> None:
    assert Sampler(5, 3, shuffle=False).ids(1) == [3, 4, 0]


@pytest.mark.parametrize("size", [*range(1, 19), BATCH, 50, 200])
@pytest.mark.parametrize("length", [31, 1000])
def test_shares_are_disjoint_even_and_together_the_batch(size: int, length: int) -> None:
    sampler = Sampler(length, BATCH)
    for step in range(4):
        shares = [sampler.places(step, rank, size) for rank in range(size)]
        assert sorted(place for share in shares for place in share) == sorted(sampler.places(step, 0, 1))
        assert len({len(share) for share in shares}) <= 2
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert [place.id for place in sampler.places(step, 0, 1)] == sampler.ids(step)


def test_another_global_batch_repeats_and_omits_nothing_and_survives_a_save() -> None:
    sampler, row, step = Sampler(100, 10, seed=5), [], 0
    for batch in (10, 7, 7, 33):
        sampler.rebatch(step, batch)
        sampler.rebatch(step, batch)  # a second attempt at the same world
        fresh = Sampler(100, 64)
        fresh.load_state_dict(sampler.state_dict())
        for _ in range(4):
            assert fresh.ids(step) == sampler.ids(step)
            row += sampler.ids(step)
            step += 1
    assert sorted(row[:100]) == sorted(row[100:200]) == list(range(100))
    assert row == Sampler(100, len(row), seed=5).ids(0)


def test_a_save_of_another_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="has 90 samples, but the saved state was trained with 100"):
        Sampler(90, 10).load_state_dict(Sampler(100, 10).state_dict())


@pytest.mark.parametrize("size", [1, 5, 7, 60])
@pytest.mark.parametrize("micro_batch", [None, 1, 5])
def test_even_ranks_get_equally_many_micro_batches_and_the_same_samples(size: int, micro_batch: int | None) -> None:
    sampler = Sampler(1000, BATCH)
    loader = Loader(Numbers(1000), sampler, micro_batch=micro_batch)
    loader.is_even = True
    for step in range(2):
        shares = [list(loader.batches(step, rank, size)) for rank in range(size)]
        assert len({len(share) for share in shares}) == 1
        assert all([micro.is_last for micro in share] == [False] * (len(share) - 1) + [True] for share in shares)
        used = [id for share in shares for micro in share if micro.samples for id in micro.values[1].tolist()]
        assert sorted(used) == sorted(sampler.ids(step))
        assert sum(micro.samples for share in shares for micro in share) == BATCH


@pytest.mark.parametrize("size", [*range(1, 19), 60])
@pytest.mark.parametrize("micro_batch", [None, 1, 5])
def test_weighted_gradients_of_all_ranks_are_the_mean_over_the_batch(size: int, micro_batch: int | None) -> None:
    sampler = Sampler(36, BATCH)
    loader = Loader(Numbers(36), sampler, micro_batch=micro_batch)
    ledger = torch.zeros(36, dtype=torch.float64, requires_grad=True)
    for step in range(3):  # four epochs
        for rank in range(size):
            micros = list(loader.batches(step, rank, size))
            assert [micro.is_last for micro in micros] == [False] * (len(micros) - 1) + [True]
            for micro in micros:
                (ledger[micro.values[1]].mean() * micro.scale / size).backward()  # DDP divides by the size
    assert ledger.grad is not None
    assert torch.allclose(ledger.grad * BATCH, torch.full((36,), 4.0, dtype=torch.float64), atol=1e-12)


def test_a_rank_without_samples_gets_a_stand_in_that_counts_nothing() -> None:
    sampler = Sampler(100, 3)
    (micro,) = Loader(Numbers(100), sampler).batches(4, 3, 5)
    assert (micro.samples, micro.scale, micro.is_last) == (0, 0.0, True)
    assert int(micro.values[1]) in sampler.ids(4)
    assert weight(0, 3, 5) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_were_fetched_for_an_old_share_are_dropped(workers: int) -> None:
    """The world changes between steps, inside a step, and back; the step is tried again."""
    sampler = Sampler(200, 12, seed=1)
    loader = Loader(Numbers(200), sampler, micro_batch=2, workers=workers)
    worlds = [(0, 0, 2), (1, 0, 2), (2, 0, 3), (2, 0, 3), (2, 1, 2), (3, 1, 2), (4, 1, 2), (4, 0, 1), (5, 0, 1), (9, 3, 4)]
    try:
        for number, (step, rank, size) in enumerate(worlds):
            if number % 3 == 1:
                next(loader.batches(step, rank, size))  # breaks off
            if number == 6:
                sampler.rebatch(step, 20)
            found = [int(i) for micro in loader.batches(step, rank, size) for i in micro.values[1]]
            assert found == sampler.share(step, rank, size)
    finally:
        loader.close()


def test_a_new_share_does_not_wait_for_the_samples_of_the_old_one() -> None:
    """A loader worker stops in the middle of a micro-batch that nobody wants any more."""
    gate, length = torch.multiprocessing.get_context("fork").Event(), 10_000
    fetched = torch.zeros(length, dtype=torch.int64).share_memory_()

    class Counting(Numbers):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int, tuple[float, float, float]]:
            if int(fetched.sum()) == 150:
                gate.wait(60)
            fetched[index] += 1
            return super().__getitem__(index)

    sampler = Sampler(length, 1000)
    loader = Loader(Counting(length), sampler, micro_batch=100, workers=1, multiprocessing_context="fork")
    try:
        next(loader.batches(0, 0, 1))
        while int(fetched.sum()) < 150:
            time.sleep(0.01)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            result = thread.submit(lambda: next(loader.batches(5, 0, 1)))
            while int(loader._ticket) == 1:
                time.sleep(0.01)
            gate.set()
            assert result.result(60).values[1].tolist() == sampler.ids(5)[:100]
        assert int(fetched[sampler.ids(0)].sum()) == 151
    finally:
        gate.set()
        loader.close()


def test_augmentation_follows_the_sample_and_leaves_the_generators_of_the_program_alone() -> None:
    before = torch.get_rng_state()
    random_before = random.getstate()
    seen: dict[tuple[int, int], tuple[float, ...]] = {}
    for size, workers in ((1, 0), (3, 0), (2, 2)):
        for rank in range(size):
            loader = Loader(Numbers(50), Sampler(50, 20, seed=9), workers=workers)
            for step in range(5):
                for (x, ids, augmentation), *_ in loader.batches(step, rank, size):
                    assert x.shape == (len(ids), 2)
                    epochs = [place.epoch for place in loader.sampler.places(step, rank, size)]
                    for row, key in enumerate(zip(epochs, ids.tolist(), strict=True)):
                        values = tuple(float(column[row]) for column in augmentation)
                        assert seen.setdefault(key, values) == values
            loader.close()
    assert len(set(seen.values())) == len(seen) == 100
    assert torch.equal(before, torch.get_rng_state())
    assert random_before == random.getstate()
    assert sample_generator(9, 0, 1).initial_seed() != sample_generator(9, 1, 1).initial_seed()


def test_a_stream_is_refused_with_the_reason() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> object:
            return iter(())

    with pytest.raises(TypeError, match="Use a map-style dataset"):
        Loader(Stream(), Sampler(10, 2))
    with pytest.raises(TypeError, match="decides shuffle itself"):
        Loader(Numbers(10), Sampler(10, 2), shuffle=True)


def test_an_error_of_the_dataset_is_raised_as_it_is() -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int, tuple[float, float, float]]:
            raise KeyError("sample without label")

    for workers in (0, 1):
        loader = Loader(Broken(10), Sampler(10, 2), workers=workers)
        with pytest.raises(KeyError, match="sample without label"):
            next(loader.batches(0, 0, 1))
        loader.close()


def test_loader_workers_end_with_the_process_even_if_it_is_killed() -> None:
    """A worker that had hardly begun once lived for ever, because DataLoader compares parents only from its own begin on."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        loader = Loader(Numbers(10), Sampler(10, 2), workers=2)
        loader.start()
        os.write(write, " ".join(str(worker.pid) for worker in loader._results._workers).encode())  # type: ignore[union-attr]
        time.sleep(60)
        os._exit(0)
    os.close(write)
    workers = [int(pid) for pid in os.read(read, 100).split()]
    os.close(read)
    assert len(workers) == 2
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(state(pid) != "Z" for pid in workers):
        time.sleep(0.1)
    alive = [pid for pid in workers if state(pid) != "Z"]
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert not alive, "loader workers outlive their process"


def state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_forked_process_does_not_keep_a_socket_open() -> None:
    own, peer = socket.socketpair()
    forks.keep_from_children(own)
    loader = Loader(Numbers(10), Sampler(10, 2), workers=1, multiprocessing_context="fork")
    try:
        next(loader.batches(0, 0, 1))
        own.close()
        peer.settimeout(30)
        assert peer.recv(1) == b""
    finally:
        loader.close()
        peer.close()
