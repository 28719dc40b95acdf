"""Check which environment stands for an image on the laptop."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic.cli import main
from elastic.local.agent.images import ImageError, Images, parse_images, without_tag, write_programs

BASE = {"PATH": "/ours/bin:/usr/bin:/bin", "HOME": "/home/me"}


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("train", "train"),
        ("train:1.2", "train"),
        ("registry:5000/team/train", "registry:5000/team/train"),
        ("registry:5000/team/train:1", "registry:5000/team/train"),
        ("team/train@sha256:abc", "team/train"),
        ("team/train:1@sha256:abc", "team/train"),
    ],
)
def test_an_image_is_known_without_its_tag(reference: str, name: str) -> None:
    assert without_tag(reference) == name


def test_a_container_of_a_named_image_finds_that_environments_programs_first_and_none_of_ours() -> None:
    inside = Images({"team/train": Path("/venv")}).environment("team/train:7", BASE)
    assert inside == {"PATH": "/venv/bin:/usr/bin:/bin", "HOME": "/home/me", "VIRTUAL_ENV": "/venv"}


def test_a_name_with_a_tag_wins_over_one_without() -> None:
    images = Images({"train": Path("/any"), "train:2": Path("/two")})
    assert images.find("train:2").folder == Path("/two")
    assert images.find("train:3").folder == Path("/any")


def test_other_images_run_with_our_own_programs() -> None:
    assert Images({"train": Path("/venv")}).environment("other:1", BASE) == BASE


def test_the_image_that_brings_kubectl_to_mpi_launchers_has_a_command_here() -> None:
    assert "elastic_worker.mpi.kubectl" in Images().find("kubeflow/kubectl-delivery:latest").command


@pytest.mark.parametrize("word", ["train", "train=", "=/venv"])
def test_an_argument_without_image_and_folder_is_refused_with_an_example(word: str) -> None:
    with pytest.raises(ImageError, match="IMAGE=FOLDER"):
        parse_images([word])


def test_a_folder_without_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="has no folder bin"):
        parse_images([f"train={tmp_path}"])
    (tmp_path / "bin").mkdir()
    assert parse_images([f"train={tmp_path}"]) == {"train": tmp_path}


@pytest.mark.parametrize(("command", "word"), [(["up"], "train"), (["run", "-"], "train=")])
def test_the_command_line_names_the_option_and_what_is_wrong_with_it(command: list[str], word: str) -> None:
    said = CliRunner().invoke(main, [*command, "--image", word])
    assert said.exit_code == 2
    assert f"'--image': {word} is not of the form IMAGE=FOLDER" in said.output


def test_nslookup_says_whether_a_name_resolves(tmp_path: Path) -> None:
    write_programs(tmp_path, python=sys.executable)
    found = subprocess.run([tmp_path / "nslookup", "localhost"], capture_output=True, text=True, timeout=60)
    assert (found.returncode, "127.0.0.1" in found.stdout or "::1" in found.stdout) == (0, True)
    missing = subprocess.run([tmp_path / "nslookup", "no-such-pod.invalid"], capture_output=True, text=True, timeout=60)
    assert missing.returncode == 1
    assert "cannot find no-such-pod.invalid" in missing.stderr
