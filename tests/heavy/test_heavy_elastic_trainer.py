"""Hugging Face's Trainer in worlds that change, with the real package: no step and no sample is lost, and every size computes the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from example_jobs import ROOT, environment
from training_lab import Lab, forking, lab, starting

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.full,
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.framework("huggingface"),
    pytest.mark.timeout(300),
]
WORKER = Path(__file__).parent / "huggingface_worker.py"
LIKE_ONE = 1e-9
"""Float64 weights differ by the order of additions only."""


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("huggingface") / "bin" / "python"


@pytest.fixture(scope="module")
def zygote(python: Path) -> Iterator[subprocess.Popen[str]]:
    with forking(python=python, script=WORKER) as one:
        yield one


@pytest.fixture
def start(tmp_path: Path, zygote: subprocess.Popen[str]) -> Iterator[Callable[..., Lab]]:
    """Start a lab with a first world."""
    with starting(tmp_path, zygote) as begin:
        yield begin


def said_by(python: Path, program: str, folder: Path) -> list[str]:
    """Return the lines that a program prints."""
    said = subprocess.run(
        [str(python), "-c", program, str(folder)],
        env={"PYTHONPATH": f"{ROOT}:{WORKER.parent}:{ROOT / 'tests' / 'integration'}", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    return said.stdout.splitlines()


def assert_exact(one: Lab, results: list[dict]) -> None:
    """Compare the workers of the last world with the same training in a single process."""
    (steps,) = {result["steps"] for result in results}
    assert [result["wrong"] for result in results] == [0] * len(results), "samples that were not used exactly as often as they should"
    expected = one.reference(steps)
    for result in results:
        assert max(abs(a - b) for a, b in zip(result["vector"], expected, strict=True)) < LIKE_ONE
    assert len({result["rate"] for result in results}) == 1, "the schedule goes on in newcomers"
    assert one.plane.problems == []


def test_a_trainer_goes_on_in_process_when_workers_are_lost_join_and_leave(start: Callable[..., Lab]) -> None:
    """The first rank is lost, too. The progress bar of its successor begins, and each epoch is told once."""
    one = start(3, disable_tqdm=False, arguments={"eval_strategy": "epoch"})
    one.kill(one.plane.world[0])
    one.settle()
    newcomer = one.start_standing_by()
    one.settle()
    one.plane.leave(one.plane.world[0])
    one.settle()
    results = one.finish()
    assert [(result["rank"], result["size"]) for result in results] == [(0, 2), (1, 2)]
    assert one.plane.world[1] == newcomer
    assert results[0]["first"] == 0
    assert results[1]["first"] > 0
    first, second = results
    assert first["evaluated"] == second["evaluated"], "the newcomer knows the evaluations before its time"
    assert len(first["evaluated"]) > 1
    assert [result["counted"] for result in results] == [result["steps"] for result in results], "callbacks keep their state"
    steps = [step for step, _ in results[0]["epochs"]]
    assert steps == sorted(set(steps)), "each epoch ends once"
    assert all(step * 24 / 247 == pytest.approx(epoch) for step, epoch in results[0]["epochs"])
    assert_exact(one, results)


def test_a_loss_in_the_last_step_leaves_the_checkpoint_of_the_end(start: Callable[..., Lab]) -> None:
    """The worker that would have saved is killed while the others wait for it after the last step."""
    one = start(3, max_steps=40, save_strategy="steps", hang_in_last_save=True)
    one.until(lambda: (one.folder / "saves").exists())
    one.kill(one.plane.world[0])
    one.until(lambda: len(one.results()) == 2)
    results = one.results()
    assert sorted(result["rank"] for result in results) == [0, 1]
    state = json.loads((one.folder / "checkpoints" / "checkpoint-40" / "trainer_state.json").read_text())
    assert state["global_step"] == 40
    assert_exact(one, results)


def test_a_notice_makes_the_first_rank_save_once(start: Callable[..., Lab]) -> None:
    one = start(2, max_steps=15, save_strategy="steps", noticed_in=7)
    one.until(lambda: len(one.results()) == 2)
    first, second = sorted(one.results(), key=lambda result: result["rank"])
    assert (first["saved"], second["saved"]) == ([8, 15], [15]), "the others need not know"
    assert (one.folder / "checkpoints" / "checkpoint-8" / "trainer_state.json").exists()


def test_a_first_rank_whose_last_step_broke_off_saves_the_state_of_its_peers(start: Callable[..., Lab]) -> None:
    """The others have made the last step and wait. It gets their state, and has no step left to make."""
    one = start(3, max_steps=40, save_strategy="steps", break_last_step=True)
    one.until(lambda: len(one.results()) == 3)
    assert (one.folder / "broke").exists()
    assert one.plane.pulled == 1
    assert [result["saved"][-1] for result in one.results()] == [40] * 3
    state = json.loads((one.folder / "checkpoints" / "checkpoint-40" / "trainer_state.json").read_text())
    assert (state["global_step"], state["log_history"][-1]["step"]) == (40, 40)
    assert_exact(one, one.results())


def test_a_trainer_that_starts_again_goes_on_from_its_checkpoint(tmp_path: Path, zygote: subprocess.Popen[str]) -> None:
    """The samples go on too: the ledger is that of a training without an interruption."""
    with lab(tmp_path, 2, zygote, save_strategy="steps", max_steps=22) as one:
        one.start()
        one.start()
        one.until(lambda: len(one.results()) == 2)
    (tmp_path / "door").unlink()
    for path in tmp_path.glob("result-*"):
        path.unlink()
    with lab(tmp_path, 3, zygote, save_strategy="steps", max_steps=50, resume=True, seed=3) as one:
        for _ in range(3):
            one.start()
        one.until(lambda: len(one.results()) == 3)
        assert [result["first"] for result in one.results()] == [22] * 3
        assert_exact(one, one.results())


PLAIN = """
import json, sys
from pathlib import Path
import torch
from transformers import Trainer, TrainingArguments
from huggingface_worker import BATCH, Model, Samples
from elastic_worker.integrations.huggingface_trainer import ElasticTrainer, ElasticTrainingArguments

torch.set_num_threads(1)
common = dict(
    max_steps=12, save_strategy="no", report_to=[], use_cpu=True, logging_steps=1, disable_tqdm=True, include_num_input_tokens_seen="all",
    train_sampling_strategy="sequential", learning_rate=0.05, max_grad_norm=0.5, label_names=["labels"],
)
plain = TrainingArguments(output_dir=sys.argv[1], per_device_train_batch_size=BATCH, **common)
elastic = ElasticTrainingArguments(output_dir=sys.argv[1], global_batch_size=BATCH, per_device_train_batch_size=5, **common)
said = []
for kind, args in ((Trainer, plain), (ElasticTrainer, elastic)):
    trainer = kind(model=Model(3), args=args, train_dataset=Samples(), eval_dataset=Samples())
    trainer.train()
    said.append([[entry[name] for name in ("loss", "grad_norm", "learning_rate", "step")] for entry in trainer.state.log_history[:10]])
    said[-1].append(trainer.evaluate()["eval_loss"])
print(json.dumps(said))
"""


def test_alone_it_computes_what_the_plain_trainer_does(python: Path, tmp_path: Path) -> None:
    """Ten steps of the first epoch: afterwards the plain Trainer ends a batch with the epoch."""
    plain, elastic = json.loads(said_by(python, PLAIN, tmp_path)[-1])
    for one, other in zip(plain[:10], elastic[:10], strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_under_stock_torchrun_it_trains_with_the_same_script(python: Path, tmp_path: Path) -> None:
    """Two processes share each batch. The world cannot change in process, and the log says so."""
    said = subprocess.run(
        [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", "examples/huggingface-in-process/train.py"],
        cwd=ROOT,
        env={
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            "STEPS": "12",
            "SAVE_EVERY": "6",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    steps = [line.split()[:4] for line in said.stdout.splitlines() if line.startswith("step ")]
    assert steps == [["step", str(step), "world", "2"] for step in range(1, 13)]
    assert said.stdout.count("done at step 12") == 2
    assert said.stderr.count("This job does not change its world while its processes run") >= 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint-12", "checkpoint-6"]


REFUSED = """
import sys, torch
from transformers import Trainer, TrainingArguments
from huggingface_worker import Model, Samples
from elastic_worker.integrations.huggingface_trainer import ElasticMixin, ElasticTrainer, ElasticTrainingArguments

class OwnData(Trainer):
    def get_train_dataloader(self):
        return None

class OwnElastic(ElasticMixin, OwnData):
    pass

def words(make, **given):
    try:
        make(**given)
    except (TypeError, ValueError) as error:
        return str(error)

def trainer(kind=ElasticTrainer, arguments=ElasticTrainingArguments, **given):
    given = {"global_batch_size": 24, **given} if arguments is ElasticTrainingArguments else given
    return kind(model=Model(1), args=arguments(output_dir=sys.argv[1], use_cpu=True, report_to=[], **given), train_dataset=Samples())

print(words(trainer, gradient_accumulation_steps=4))
print(words(trainer, dataloader_drop_last=True))
print(words(trainer, optim="lomo"))
print(words(trainer, accelerator_config={"split_batches": True}))
print(words(trainer, global_batch_size=0))
print(words(trainer, arguments=TrainingArguments))
print(words(trainer, kind=OwnElastic))
"""


def test_an_argument_that_it_does_not_honour_is_an_error(python: Path, tmp_path: Path) -> None:
    lines = said_by(python, REFUSED, tmp_path)
    assert [line.partition(",")[0] for line in lines[:2]] == [
        "gradient_accumulation_steps is 4",
        "dataloader_drop_last is True",
    ]
    assert lines[2].startswith("optim is 'lomo'")
    assert lines[3].startswith("accelerator_config.split_batches is True")
    assert lines[4].startswith("global_batch_size is 0")
    assert lines[5].startswith("args is a TrainingArguments. Use ElasticTrainingArguments")
    assert lines[6].startswith("OwnData.get_train_dataloader would not be called")
