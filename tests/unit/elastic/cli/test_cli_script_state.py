"""Check the warning of `elastic run` about a script that would lose all of its training at the first change."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic.cli import main
from elastic.cli.script_state import MOST_FILES, WORDS, warning

TRAINS = "loss = model(batch)\nloss.backward()\noptimizer.step()\ntorch.save(model.state_dict(), 'model.pt')\n"
ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    "beginning",
    [
        "",
        "from torch.utils.data import DataLoader\nloader = DataLoader(data)\n",
        "from datasets import load_dataset\ndata = load_dataset('mnist')\n",
        "import utils\ndata = MNIST(download=True)\n",
        "from elastic_worker.report import report\n",
    ],
)
def test_a_script_that_only_saves_is_warned_about(tmp_path: Path, beginning: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(beginning + TRAINS)
    assert warning(script) == WORDS


@pytest.mark.parametrize(
    "beginning",
    [
        "state = torch.load('model.pt')\n",
        "model.load_state_dict(state)\n",
        "from elastic_worker import Run\n",
        "checkpoint.restore()\n",
        "fit(ckpt_path='last')\n",
        "trainer.train(resume_from_checkpoint=True)\n",
    ],
)
def test_a_script_that_may_load_its_state_is_not(tmp_path: Path, beginning: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(beginning + TRAINS)
    assert warning(script) == ""


def test_modules_next_to_the_script_count(tmp_path: Path) -> None:
    script, helper, package = tmp_path / "train.py", tmp_path / "helper.py", tmp_path / "state"
    script.write_text("import helper\nfrom state import files\n" + TRAINS)
    helper.write_text("x = 1\n")
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "files.py").write_text("")
    assert warning(script) == WORDS
    (package / "files.py").write_text("def read():\n    return torch.load('model.pt')\n")
    assert warning(script) == ""


@pytest.mark.parametrize("text", [b"loss.backward(", b"\xff\xfe", b"x = 1\n", b"#" * (1 << 21), b""])
def test_a_script_that_cannot_be_read_or_does_not_train_is_not_judged(tmp_path: Path, text: bytes) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(text)
    assert warning(script) == ""
    assert warning(tmp_path / "absent.py") == ""
    assert warning(tmp_path / "train.sh") == ""


def test_a_script_with_very_many_modules_is_not_judged(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("".join(f"import m{number}\n" for number in range(MOST_FILES)) + TRAINS)
    for number in range(MOST_FILES):
        (tmp_path / f"m{number}.py").touch()
    assert warning(script) == ""
    script.write_text("import m1\n" + TRAINS)
    assert warning(script) == WORDS


def test_no_elastic_example_of_pytorch_is_warned_about() -> None:
    scripts = [path for path in (ROOT / "examples").rglob("*.py") if "backward" in path.read_text()]
    warned = {path.parent.name for path in scripts if warning(path)}
    assert len(scripts) > len(warned)
    assert warned <= {"pytorch-static", "horovod-elastic", "paddle", "mxnet"}, "these do not begin as a SCRIPT"


def test_a_run_warns_before_it_starts_and_with_strict_runs_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    said = CliRunner().invoke(main, ["run", str(script), "--save", str(tmp_path / "job.yaml")])
    assert said.exit_code == 0
    said = CliRunner().invoke(main, ["run", str(script), "--strict"])
    assert said.exit_code == 2
    assert WORDS in said.stderr
