"""The callbacks against stand-ins for the two frameworks. tests/heavy has the real ones."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_worker.report import Answer
from elastic_worker.startup.deliver import deliver

ROOT = Path(__file__).resolve().parents[4]
HUGGINGFACE, LIGHTNING = "elastic_worker.integrations.huggingface", "elastic_worker.integrations.lightning"
NOTICE = Answer(checkpoint_s=30.0)


class Told:
    """A reporter whose answer the test chooses."""

    is_heard = True

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.reports: list[tuple[int, dict[str, float]]] = []

    def send(self, step: int, **values: float) -> Answer:
        self.reports.append((step, values))
        return self.answer


Load = Callable[..., Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Return a module of ours, imported with stand-ins for a framework's modules."""

    def loaded(name: str, **bases: str) -> Any:
        for module, base in bases.items():
            parts = module.split("_of_")[::-1] if "_of_" in module else [module]
            for count in range(1, len(parts) + 1):
                stand_in = types.ModuleType(".".join(parts[:count]))
                setattr(stand_in, base, type(base, (), {"of": module}))
                monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    yield loaded
    for name in (HUGGINGFACE, LIGHTNING):
        sys.modules.pop(name, None)


# --- Hugging Face ---


class Enum:
    """A strategy as a version with enums has it."""

    def __init__(self, value: str) -> None:
        self.value = value


def arguments(**changed: Any) -> Any:
    values = {"device": "cpu", "train_batch_size": 4, "gradient_accumulation_steps": 2, "world_size": 3, "save_strategy": Enum("steps")}
    return SimpleNamespace(**{**values, **changed})


class Huggingface:
    """A Trainer that has trained some steps."""

    def __init__(self, load: Load, answer: Answer, **changed: Any) -> None:
        self.told, self.args = Told(answer), arguments(**changed)
        self.state = SimpleNamespace(global_step=0)
        self.control = SimpleNamespace(should_save=False, should_evaluate=True)
        self.callback = load(HUGGINGFACE, transformers="TrainerCallback").ElasticCallback(self.told)
        self.callback.on_train_begin(self.args, self.state, self.control)

    def step(self) -> Any:
        self.state.global_step += 1
        return self.callback.on_step_end(self.args, self.state, self.control)

    def close(self) -> None:
        self.callback._agreement.abandon()


@pytest.fixture
def trainer(load: Load) -> Iterator[Callable[..., Huggingface]]:
    made: list[Huggingface] = []

    def make(answer: Answer, **changed: Any) -> Huggingface:
        made.append(Huggingface(load, answer, **changed))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_huggingface_reports_the_steps_with_loss_and_samples_of_the_whole_world(trainer: Callable[..., Huggingface]) -> None:
    one = trainer(Answer())
    one.callback.on_log(one.args, one.state, one.control, logs={"loss": "0.25", "learning_rate": 1.0})
    one.step()
    one.callback.on_log(one.args, one.state, one.control, logs={"eval_loss": 9.0})
    one.callback.on_train_end(one.args, one.state, one.control)
    assert one.told.reports == [(1, {"loss": 0.25, "samples": 24.0})] * 2
    assert not one.control.should_save


@pytest.mark.parametrize(("strategy", "is_saved"), [(Enum("steps"), True), ("epoch", True), (Enum("no"), False), ("no", False)])
def test_huggingface_saves_on_a_notice_unless_the_user_saves_nothing(
    trainer: Callable[..., Huggingface], strategy: Any, is_saved: bool
) -> None:
    one = trainer(NOTICE, save_strategy=strategy)
    assert one.step().should_save == is_saved
    assert one.control.should_evaluate, "a notice leaves time"


@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_huggingface_ends_after_the_last_save_of_a_world(
    trainer: Callable[..., Huggingface], monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    one = trainer(Answer(), save_strategy=strategy)
    one.callback._agreement._sigterm.has_come = True
    if strategy == "steps":
        assert one.step().should_save
        assert not one.control.should_evaluate
        with pytest.raises(SystemExit) as ended:
            one.callback.on_save(one.args, one.state, one.control)
    else:
        with pytest.raises(SystemExit) as ended:
            one.step()
    assert ended.value.code == 143


def checkpoint(folder: Path, step: int, *, state: str | None = None) -> str:
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step}) if state is None else state)
    return str(made)


def test_the_newest_whole_checkpoint_is_taken(load: Load, tmp_path: Path) -> None:
    module = load(HUGGINGFACE, transformers="TrainerCallback")
    assert module.newest_checkpoint(str(tmp_path / "missing")) is None
    assert module.newest_checkpoint(str(tmp_path)) is None
    whole = checkpoint(tmp_path, 90)
    checkpoint(tmp_path, 100, state='{"global_st')
    checkpoint(tmp_path, 110, state='{"global_step": 90}')
    (tmp_path / "checkpoint-120").mkdir()
    Path(checkpoint(tmp_path, 130), "checkpoint-is-incomplete.txt").touch()
    checkpoint(tmp_path / "other", 140)
    (tmp_path / "checkpoint-150").touch()
    checkpoint(tmp_path, 20)
    assert module.newest_checkpoint(str(tmp_path)) == whole


def test_a_checkpoint_that_a_peer_cannot_see_is_not_taken(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = load(HUGGINGFACE, transformers="TrainerCallback")
    older, _ = checkpoint(tmp_path, 50), checkpoint(tmp_path, 60)

    def gather(into: list[Any], own: list[int]) -> None:
        into[:] = [own, [40, 50]]

    peers = SimpleNamespace(get_world_size=lambda: 2, all_gather_object=gather)
    monkeypatch.setattr("elastic_worker.integrations.agreement._peers", lambda: peers)
    assert module.newest_checkpoint(str(tmp_path)) == older
    assert "not all ranks can read checkpoint-60" in caplog.text


# --- Lightning ---


class Lightning:
    """A Trainer that has trained some steps."""

    def __init__(self, callbacks: list[Any], *, folder: str | None) -> None:
        self.global_step = 0
        self.callbacks = callbacks
        self.strategy = SimpleNamespace(root_device="cpu")
        self.checkpoint_callback = SimpleNamespace(dirpath=folder, CHECKPOINT_NAME_LAST="last", FILE_EXTENSION=".ckpt") if folder else None
        self.saved: list[str] = []
        for one in callbacks:
            one.setup(self, None, "fit")
        for one in callbacks:
            one.on_train_start(self, None)

    def save_checkpoint(self, path: str) -> None:
        self.saved.append(path)

    def step(self, outputs: Any = None, *, accumulates: bool = False) -> None:
        self.global_step += not accumulates
        for one in self.callbacks:
            one.on_train_batch_end(self, None, outputs, None, 0)

    def close(self) -> None:
        for one in self.callbacks:
            one.on_exception(self, None, ValueError())


@pytest.fixture
def lightning(load: Load) -> Iterator[Callable[..., tuple[Lightning, list[Told]]]]:
    made: list[Lightning] = []

    def make(answer: Answer, *, count: int = 1, folder: str | None = "/checkpoints") -> tuple[Lightning, list[Told]]:
        kind = load(LIGHTNING, pytorch_of_lightning="Callback").ElasticCallback
        told = [Told(answer) for _ in range(count)]
        made.append(Lightning([kind(one) for one in told], folder=folder))
        return made[-1], told

    yield make
    for one in made:
        one.close()


def test_lightning_reports_the_loss_that_the_step_returns(lightning: Callable[..., tuple[Lightning, list[Told]]]) -> None:
    for outputs, values in (({"loss": 0.5}, {"loss": 0.5}), (0.25, {"loss": 0.25}), (None, {}), ({"other": 1}, {})):
        trainer, (told,) = lightning(Answer())
        trainer.step(outputs)
        assert told.reports == [(1, values)]


def test_lightning_does_nothing_while_gradients_are_accumulated(lightning: Callable[..., tuple[Lightning, list[Told]]]) -> None:
    trainer, (told,) = lightning(NOTICE)
    trainer.step(accumulates=True)
    assert (told.reports, trainer.saved) == ([], [])


@pytest.mark.parametrize(("folder", "saved"), [("/checkpoints", ["/checkpoints/last-elastic.ckpt"]), (None, [])])
def test_lightning_saves_where_ckpt_path_last_looks(
    lightning: Callable[..., tuple[Lightning, list[Told]]], folder: str | None, saved: list[str]
) -> None:
    trainer, _ = lightning(NOTICE, folder=folder)
    trainer.step()
    assert trainer.saved == saved
    assert all(re.match(r"^last(-(\d+))?", Path(path).stem) for path in saved), "Lightning's own pattern"


def test_lightning_has_one_callback_at_work_if_the_user_added_one_too(lightning: Callable[..., tuple[Lightning, list[Told]]]) -> None:
    trainer, (users, ours) = lightning(NOTICE, count=2)
    trainer.step()
    assert (len(users.reports), len(ours.reports), len(trainer.saved)) == (1, 0, 1)


def test_lightning_ends_after_it_saved_because_of_sigterm(lightning: Callable[..., tuple[Lightning, list[Told]]]) -> None:
    trainer, _ = lightning(Answer())
    trainer.callbacks[0]._agreement._sigterm.has_come = True
    with pytest.raises(SystemExit) as ended:
        trainer.step()
    assert ended.value.code == 143
    assert trainer.saved == ["/checkpoints/last-elastic.ckpt"]


def test_only_lightnings_own_handler_of_sigterm_is_replaced(load: Load) -> None:
    module = load(LIGHTNING, pytorch_of_lightning="Callback")
    handlers = type("_HandlersCompose", (), {"__init__": lambda self, inside: setattr(self, "signal_handlers", inside)})
    assert module._is_lightnings(handlers(["notifier"]))  # type: ignore[call-arg]
    assert not module._is_lightnings(handlers(["notifier", "the user's"]))  # type: ignore[call-arg]
    assert not module._is_lightnings(print)


@pytest.mark.parametrize(("environment", "count"), [({}, 0), ({"ELASTIC_REPORTS": "/reports"}, 1), ({"PET_RDZV_BACKEND": "c10d"}, 0)])
def test_lightning_adds_the_callback_where_a_control_plane_takes_reports(
    load: Load, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], count: int
) -> None:
    for name in ("ELASTIC_REPORTS", "PET_RDZV_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert len(load(LIGHTNING, pytorch_of_lightning="Callback").callbacks()) == count


def test_the_callback_is_of_the_package_that_the_program_uses(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert load(LIGHTNING, pytorch_lightning="Callback").ElasticCallback.of == "pytorch_lightning"
    assert load(LIGHTNING, pytorch_lightning="Callback", pytorch_of_lightning="Callback").ElasticCallback.of == "pytorch_of_lightning"


# --- delivery ---


def test_a_delivered_library_has_the_entry_points_of_the_wheel(tmp_path: Path) -> None:
    deliver(str(tmp_path))
    delivered = configparser.ConfigParser()
    delivered.read(next(tmp_path.glob("*.dist-info/entry_points.txt")))
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {group: dict(delivered[group]) for group in delivered.sections()} == wheel


def test_importing_the_library_imports_no_framework() -> None:
    code = (
        "import sys; import elastic_worker, elastic_worker.report, elastic_worker.integrations.agreement; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'transformers', 'lightning', 'pytorch_lightning'}))"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
