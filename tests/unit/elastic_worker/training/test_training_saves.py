"""Saves: complete or not there, and training goes on whatever the storage does."""

import logging
import os
import pathlib
import threading
import typing

import pytest
import torch

from elastic_worker.training.places import Folder, Remote
from elastic_worker.training.sampler import Sampler
from elastic_worker.training.saves import SaveMismatch, Saves
from elastic_worker.training.snapshot import Unsavable

FOREVER = 60.0


def training(value: float = 0.0, *, width: int = 8) -> dict[str, typing.Any]:
    """Return a state that a save contains, after one optimizer step."""
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width))
    model[0].weight.data.fill_(value)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, width)).square().sum().backward()
    optimizer.step()
    model[0].weight.data.fill_(value)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    sampler = Sampler(100, 10, seed=int(value))
    return {"model": model, "optimizer": optimizer, "extra": {"scheduler": scheduler}, "sampler": sampler, "made_by": "a test"}


def value_of(state: dict[str, typing.Any]) -> float:
    return float(state["model"][0].weight.data.mean())


def saved(saves: Saves, step: int, value: float | None = None) -> dict[str, typing.Any]:
    state = training(step if value is None else value)
    assert saves.now(step, state, FOREVER)
    return state


def names(target: pathlib.Path) -> list[str]:
    return sorted(os.listdir(target))


@pytest.fixture
def target(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "saves"


class Slow(Folder):
    """A folder that writes only while its gate is open."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.is_writing = threading.Event()

    def create(self, name: str) -> typing.Any:
        slow, file = self, super().create(name)

        class Gated:
            def write(self, content: typing.Any) -> int:
                slow.is_writing.set()
                slow.gate.wait(FOREVER)
                return int(file.write(content))

            def __getattr__(self, name: str) -> typing.Any:
                return getattr(file, name)

        return Gated()


def slow_saves(target: pathlib.Path, every_s: float = 1e-9) -> tuple[Saves, Slow]:
    saves = Saves(target, every_s)
    saves._place = place = Slow(str(target))
    return saves, place


@pytest.mark.parametrize("kind", ["folder", "file://", "memory://"])
def test_everything_comes_back_from_the_newest_save(kind: str, target: pathlib.Path) -> None:
    place = str(target) if kind == "folder" else f"{kind}{target}"
    saves = Saves(place, 60)
    saved(saves, 3)
    old = saved(saves, 12)
    new = training(99)
    assert Saves(place, 60).restore(new) == 12
    for name in ("model", "optimizer", "sampler"):
        assert str(new[name].state_dict()) == str(old[name].state_dict())
    assert new["extra"]["scheduler"].state_dict() == old["extra"]["scheduler"].state_dict()


def test_without_a_save_there_is_nothing_to_restore(target: pathlib.Path) -> None:
    assert Saves(target, 60).restore(training()) is None
    target.mkdir()
    (target / "notes.txt").write_text("not ours")
    (target / "step-000000000001-0000000000000001-0-of-0.json").write_text("{}")
    assert Saves(target, 60).restore(training()) is None


def test_a_save_is_due_after_its_time_and_only_the_writer_writes(target: pathlib.Path) -> None:
    now, state = [0.0], training(1)
    saves, other = Saves(target, 10, clock=lambda: now[0]), Saves(target, 10, clock=lambda: now[0])
    begun = []
    for step in range(31):
        now[0] = float(step)
        begun += [step] if saves.maybe(step, state) else []
        assert saves.close(FOREVER)
        assert not other.maybe(step, state, is_writer=False)
    assert begun == [10, 20, 30]
    now[0] = 35.0
    assert not other.maybe(35, state)  # it became the writer, and remembers the save of step 30
    assert {name.split("-")[1] for name in names(target)} == {"000000000020", "000000000030"}


def test_training_that_goes_on_does_not_reach_into_the_save(target: pathlib.Path) -> None:
    saves, place = slow_saves(target)
    state = training(5)
    assert saves.maybe(5, state)
    assert place.is_writing.wait(FOREVER)
    expected = {key: value.clone() for key, value in state["model"].state_dict().items()}
    for tensor in [*state["model"].state_dict().values(), *state["optimizer"].state[state["model"][0].weight].values()]:
        tensor.fill_(77)
    state["optimizer"].param_groups[0]["lr"] = 77.0
    state["extra"]["scheduler"].milestones[77] = 1
    assert not saves.maybe(6, state)  # one at a time
    place.gate.set()
    assert saves.close(FOREVER)
    assert saves.maybe(7, state)  # the buffers of step 5 are used again
    assert saves.close(FOREVER)
    for name in names(target):
        if "-000000000007-" in name:
            (target / name).unlink()
    new = training()
    assert Saves(target, 60).restore(new) == 5
    assert all(torch.equal(value, expected[key]) for key, value in new["model"].state_dict().items())
    assert new["optimizer"].param_groups[0]["lr"] == 0.1
    assert 77 not in new["extra"]["scheduler"].milestones


def test_only_the_last_two_saves_and_files_of_others_stay(target: pathlib.Path) -> None:
    saves = Saves(target, 60)
    target.mkdir()
    (target / "notes.txt").write_text("not ours")
    for step in (1, 2, 3, 4):
        saved(saves, step)
    saves.close(FOREVER)
    assert [name.split("-")[1][-1] for name in names(target) if name.startswith("step-")] == ["3", "3", "4", "4"]
    assert "notes.txt" in names(target)


@pytest.mark.parametrize("damage", ["no marker", "no content", "cut off", "bad marker", "half a marker", "noise", "lost mark", "part"])
def test_a_damaged_save_is_never_restored_and_is_removed(damage: str, target: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    saves = Saves(target, 60)
    saved(saves, 3)
    saved(saves, 12)
    marker, content = (next(target.glob(f"step-000000000012-*.{ending}")) for ending in ("json", "pt"))
    if damage == "no marker":
        marker.unlink()
    elif damage == "part":
        marker.rename(f"{marker}.part")
    elif damage == "no content":
        content.unlink()
    elif damage == "cut off":
        os.truncate(content, content.stat().st_size // 2)
    elif damage in ("noise", "lost mark"):
        # The second one is a pickle whose mark is missing, which makes torch's unpickler raise IndexError.
        noise = os.urandom(content.stat().st_size) if damage == "noise" else b"\x80\x02t.".ljust(content.stat().st_size, b"x")
        content.write_bytes(noise)
    else:
        marker.write_text({"bad marker": "[]", "half a marker": '{"step": 12, "byt'}[damage])
    fresh, state = Saves(target, 60), training()
    assert fresh.restore(state) == 3
    assert value_of(state) == 3.0
    assert ("step 12" in caplog.text) == (damage not in ("no marker", "part", "no content"))
    saved(fresh, 13)
    assert fresh.close(FOREVER)
    assert {name.split("-")[1] for name in names(target)} == {"000000000003", "000000000013"}


def test_a_save_of_another_program_is_an_error_that_says_so(target: pathlib.Path) -> None:
    """Training that silently begins at step 0 would cost more than an error."""
    saved(Saves(target, 60), 3)
    with pytest.raises(SaveMismatch, match=r"step 3 .* does not fit the program: RuntimeError.*size mismatch"):
        Saves(target, 60).restore(training(width=9))
    with pytest.raises(SaveMismatch, match="has 1 shards, but this job has 2"):
        Saves(target, 60, shard=(0, 2)).restore(training())


def test_names_on_one_side_only_are_logged(target: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(Saves(target, 60), 3)
    state = training()
    state["extra"] = {"ema": torch.nn.Linear(1, 1)}
    assert Saves(target, 60).restore(state) == 3
    assert "extra.scheduler, extra.ema" in caplog.text


def test_a_state_that_could_not_be_read_again_is_found_before_training(target: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    class Strange:
        def state_dict(self) -> dict[str, typing.Any]:
            return {"rule": pathlib.Path("x")}

    class Closed:
        def state_dict(self) -> dict[str, typing.Any]:
            return {"rule": lambda step: step}

    saves = Saves(target, 60)
    saves.check(training())
    for thing in (Strange(), Closed()):
        with pytest.raises(Unsavable, match=r"The state_dict of extra .* cannot be saved"):
            saves.check({"extra": {"thing": thing}})
        assert not Saves(target, 60).now(1, {"extra": {"thing": thing}}, FOREVER)
    assert "Step 1 is not saved" in caplog.text
    assert not target.exists()


# --- storage that fails ---


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_full_disk_is_one_warning_until_a_save_succeeds(target: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    full = [True]

    class Full(Folder):
        def create(self, name: str) -> typing.Any:
            file = super().create(name)

            class Disk:
                def write(self, content: typing.Any) -> int:
                    if full[0] and file.tell() > 500:
                        raise OSError(28, "No space left on device")
                    return int(file.write(content))

                def __getattr__(self, name: str) -> typing.Any:
                    return getattr(file, name)

            return Disk()

    saves, state = Saves(target, 60), training(1)
    saves._place = Full(str(target))
    told: list[dict[str, object]] = []
    saves.news.listener = lambda **news: told.append(news)
    assert not saves.now(1, state, FOREVER)
    assert not saves.now(2, state, FOREVER)
    assert names(target) == []
    assert len(warnings(caplog)) == 1
    assert "No space left on device" in warnings(caplog)[0]
    assert "training goes on" in warnings(caplog)[0]
    full[0] = False
    assert saves.now(3, state, FOREVER)
    full[0] = True
    assert not saves.now(4, state, FOREVER)
    assert len(warnings(caplog)) == 2
    assert Saves(target, 60).restore(training()) == 3
    full_disk = "No space left on device"
    assert told == [
        {"step": 1, "failures": 1, "words": full_disk, "last": None},
        {"step": 2, "failures": 2, "words": full_disk, "last": None},
        {"step": 3, "failures": 0, "words": "", "last": 3},
        {"step": 4, "failures": 1, "words": full_disk, "last": 3},
    ]


def test_the_last_complete_save_may_be_that_of_another_rank(target: pathlib.Path) -> None:
    """Another rank writes after a change of the world. It has not saved anything itself."""
    saves, told = Saves(target, 60), []
    saves.news.listener = lambda **news: told.append(news["last"])
    assert Saves(target, 60).now(7, training(1), FOREVER)
    saves._write_file = full  # type: ignore[method-assign]
    assert not saves.now(8, training(1), FOREVER)
    assert told == [7]


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_place_that_cannot_be_written_is_one_warning(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    saves = Saves(tmp_path / "file" / "saves", 60)
    assert not saves.now(1, training(), FOREVER)
    assert not saves.now(2, training(), FOREVER)
    assert len(warnings(caplog)) == 1
    assert "NotADirectoryError" in warnings(caplog)[0]


def test_a_place_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        Saves(tmp_path / "file" / "saves", 60).restore(training())


def test_files_that_vanish_while_old_saves_are_removed_do_no_harm(target: pathlib.Path) -> None:
    class Vanishing(Folder):
        def names(self) -> list[str]:
            found = super().names()
            for name in found:
                if "-000000000003-" not in name:
                    self.remove(name)
            return found

    saves = Saves(target, 60)
    saves._place = Vanishing(str(target))
    for step in (1, 2, 3):
        saved(saves, step)
    assert Saves(target, 60).restore(training()) == 3


# --- notices ---


def test_a_notice_waits_for_the_save_of_this_step_and_no_longer_than_its_time(target: pathlib.Path) -> None:
    saves, place = slow_saves(target)
    assert not saves.now(1, training(1), 0.05)
    assert not saves.now(1, training(1), 0.05)  # the first save hangs, and nothing is known about its duration
    place.gate.set()
    assert saves.now(1, training(1), FOREVER)
    assert Saves(target, 60).restore(training()) == 1


def test_a_notice_during_a_save_of_this_step_uses_it(target: pathlib.Path) -> None:
    saves, place = slow_saves(target)
    assert saves.maybe(4, training(4))
    assert place.is_writing.wait(FOREVER)
    threading.Timer(0.1, place.gate.set).start()
    assert saves.now(4, training(4), FOREVER)
    assert len(names(target)) == 2
    assert saves.now(4, training(4), FOREVER)  # already complete
    assert len(names(target)) == 2


def test_a_notice_gives_up_an_older_save_if_there_is_time_for_a_new_one(target: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves, place = slow_saves(target)
    place.gate.set()
    saved(saves, 1)
    place.gate.clear()
    place.is_writing.clear()
    assert saves.maybe(4, training(4))
    assert place.is_writing.wait(FOREVER)
    job = saves._job
    assert job is not None
    monkeypatch.setattr(job, "give_up", lambda: (setattr(job, "is_given_up", True), place.gate.set()))
    assert saves.now(5, training(5), FOREVER)
    assert not any("-000000000004-" in name for name in names(target))
    assert Saves(target, 60).restore(training()) == 5


def test_a_notice_that_is_too_short_for_a_new_save_leaves_the_time_to_the_older_one(target: pathlib.Path) -> None:
    saves, place = slow_saves(target)
    saves._took_s = 2 * FOREVER
    assert saves.maybe(4, training(4))
    assert place.is_writing.wait(FOREVER)
    threading.Timer(0.1, place.gate.set).start()
    saves.now(5, training(5), FOREVER)
    assert any(name.startswith("step-000000000004-") and name.endswith(".json") for name in names(target))


def test_no_time_is_no_save(target: pathlib.Path) -> None:
    assert not Saves(target, 60).now(1, training(1), 0.0)
    assert not target.exists() or Saves(target, 60).restore(training()) is None


# --- shards ---


def test_a_save_counts_once_all_shards_are_complete(target: pathlib.Path) -> None:
    tags: list[int] = []

    def first(tag: int) -> int:
        tags.append(tag)
        return tag

    shards = [Saves(target, 60, shard=(0, 2), agree=first), Saves(target, 60, shard=(1, 2), agree=lambda tag: tags[-1])]
    for step in (1, 2):
        for number, saves in enumerate(shards):
            assert saves.now(step, training(10 * number + step), FOREVER)
    assert shards[0].now(3, training(3), FOREVER)  # shard 1 is lost before it saved step 3
    for number in (0, 1):
        state = training()
        assert Saves(target, 60, shard=(number, 2)).restore(state) == 2
        assert value_of(state) == 10 * number + 2


def test_two_attempts_at_a_step_are_not_mixed(target: pathlib.Path) -> None:
    shards = [Saves(target, 60, shard=(number, 2), agree=lambda tag, own=number: 7 + own) for number in (0, 1)]  # type: ignore[misc]
    for saves in shards:
        assert saves.now(1, training(1), FOREVER)
    assert Saves(target, 60, shard=(0, 2)).restore(training()) is None


def test_tied_weights_are_saved_once(target: pathlib.Path) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(300, 300, bias=False), "b": torch.nn.Linear(300, 300, bias=False)})
    model["b"].weight = model["a"].weight
    assert Saves(target, 60).now(1, {"model": model}, FOREVER)
    assert next(target.glob("*.pt")).stat().st_size < 2 * 300 * 300 * 4


def test_a_url_without_fsspec_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ImportError, match="need the package fsspec"):
        Remote("memory://x")


def test_a_process_that_is_killed_while_it_saves_leaves_a_complete_save(target: pathlib.Path) -> None:
    """The process trains and saves without a pause, and goes on from the newest save; the value of the weights is the step."""
    context = torch.multiprocessing.get_context("fork")
    newest = 0
    for _ in range(3):
        begun, beginning = context.Pipe(duplex=False)
        process = context.Process(target=save_for_ever, args=(target, beginning))
        process.start()
        assert begun.poll(FOREVER)
        assert begun.recv() >= newest
        assert begun.poll(FOREVER)
        begun.recv()
        process.kill()  # in the middle of a save: each one begins when the one before it is complete
        process.join(FOREVER)
        state = training()
        step = Saves(target, 60).restore(state)
        assert step is not None
        assert step > newest
        assert value_of(state) == step
        newest = step
    assert len(names(target)) < 16


def save_for_ever(target: pathlib.Path, beginning: typing.Any) -> None:
    torch.set_num_threads(1)
    state, saves = training(), Saves(target, 60)
    step = saves.restore(state) or 0
    beginning.send(step)
    while True:
        step += 1
        state["model"][0].weight.data.fill_(step)
        saves.now(step, state, FOREVER)
        beginning.send(step)
