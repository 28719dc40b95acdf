"""Check how the library gets into a container: the changes of the pod, and the wrapper in a real shell with stand-in interpreters."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from elastic.api.rendezvous_choice import obstacle, rendezvous_flags
from elastic_training.rendezvous.delivery import IMAGE_USER, WRAPPER, Delivery, deliver, is_undeliverable, unmet
from elastic_worker.startup.deliver import deliver as copy_library

DELIVERY = Delivery(job_uid="0d9f", index=2, image="elastic:1", endpoint="rendezvous.elastic:8443", secret="train-elastic")


def pod(**container: Any) -> dict[str, Any]:
    made = {"name": "pytorch", "image": "trainer:1", "command": ["torchrun"], "args": ["train.py"], **container}
    return {"metadata": {"name": "train-worker-2"}, "spec": {"containers": [made], "initContainers": [{"name": "users-own"}]}}


def worker(delivered: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = delivered["spec"]["containers"][0]
    return found


def test_the_given_pod_stays_as_it_is_and_the_delivered_one_keeps_what_the_user_wrote() -> None:
    given = pod(env=[{"name": "PYTHONPATH", "value": "/app"}])
    before = repr(given)
    made = deliver(given, DELIVERY)
    assert repr(given) == before
    assert worker(made)["args"] == ["train.py"]
    assert worker(made)["command"][:2] == ["/bin/sh", "-c"]
    assert worker(made)["command"][-1] == "torchrun"
    assert worker(made)["env"][0] == {"name": "PYTHONPATH", "value": "/app"}
    assert [init["name"] for init in made["spec"]["initContainers"]] == ["users-own", "elastic-library"]


def test_the_folder_is_unique_per_pod_and_mounted_in_both_containers() -> None:
    made = deliver(pod(), DELIVERY)
    assert DELIVERY.folder == "/tmp/elastic-0d9f-2"
    init = made["spec"]["initContainers"][-1]
    assert init["command"] == ["python3", "-m", "elastic_worker.startup.deliver", DELIVERY.folder]
    assert {mount["mountPath"] for mount in (*init["volumeMounts"], *worker(made)["volumeMounts"])} == {DELIVERY.folder}
    assert init["resources"]["limits"]
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "runAsUser" not in init["securityContext"], "some clusters choose the user of every pod"


def test_if_the_whole_pod_is_roots_the_images_own_user_brings_the_library() -> None:
    """A kubelet does not start a container that must not run as root but would."""
    given = pod()
    given["spec"]["securityContext"] = {"runAsUser": 0}
    context = deliver(given, DELIVERY)["spec"]["initContainers"][-1]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (IMAGE_USER, IMAGE_USER, True)
    assert f"USER {IMAGE_USER}:{IMAGE_USER}" in (Path(__file__).parents[3] / "deploy" / "Dockerfile").read_text()


def test_the_rendezvous_of_the_environment_is_ours_as_a_whole() -> None:
    made = deliver(pod(env=[{"name": "PET_RDZV_BACKEND", "value": "c10d"}, {"name": "MINE", "value": "1"}]), DELIVERY)
    env = {entry["name"]: entry for entry in worker(made)["env"]}
    assert env["PET_RDZV_BACKEND"]["value"] == "elastic"
    assert env["PET_RDZV_ID"]["value"] == "0d9f"
    assert env["MINE"]["value"] == "1"
    assert env["ELASTIC_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "train-elastic", "key": "token"}
    assert int(env["PET_MAX_RESTARTS"]["value"]) >= 1_000_000


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"command": None}, "container pytorch has no command, and the image's own is not known here"),
        ({"name": "main"}, "the pod has no container named pytorch"),
        ({"args": ["--rdzv-backend=c10d", "train.py"]}, "container pytorch chooses its rendezvous itself (--rdzv-backend)"),
        ({"args": ["--rdzv_endpoint", "h:1", "t.py"]}, "container pytorch chooses its rendezvous itself (--rdzv_endpoint)"),
        (
            {"command": ["sh", "-c"], "args": ["cd /app && torchrun --standalone t.py"]},
            "container pytorch chooses its rendezvous itself (--standalone)",
        ),
        ({}, ""),
        ({"args": ["train.py", "--rdzvous-of-mine"]}, ""),
    ],
)
def test_a_container_that_cannot_get_the_library_is_told_in_words(container: dict[str, Any], words: str) -> None:
    assert obstacle(pod(**container)) == words


def test_flags_are_found_in_commands_as_well() -> None:
    assert rendezvous_flags({"command": ["torchrun", "--rdzv-id=7"], "args": ["--rdzv_conf", "a=b"]}) == ["--rdzv-id", "--rdzv_conf"]


def test_only_status_and_message_together_mean_that_delivery_failed() -> None:
    message = "elastic-training cannot deliver its library to job 0d9f: torch 1.13 is installed"
    assert is_undeliverable({"exitCode": 119, "message": message}, "0d9f") == "torch 1.13 is installed"
    assert is_undeliverable({"exitCode": 1, "message": message}, "0d9f") == ""
    assert is_undeliverable({"exitCode": 119, "message": message}, "another") == ""
    assert is_undeliverable({"exitCode": 119}, "0d9f") == ""


class Image:
    """A folder that stands for an image: interpreters with their own distributions, and a torchrun."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.bin = folder / "bin"
        self.site = folder / "site"
        self.library = folder / "library"
        self.log = folder / "termination-log"
        self.bin.mkdir()
        self.site.mkdir()
        copy_library(str(self.library))
        self.python("python3")
        self.script("torchrun", f"#!{self.bin}/python3\nimport os, sys\nprint('ran', os.environ.get('PYTHONPATH', ''), *sys.argv[1:])\n")

    def python(self, name: str) -> None:
        """Add an interpreter that sees only this image's distributions."""
        code = (
            f"import sys,runpy; sys.path[:] = [p for p in sys.path if 'site-packages' not in p and p != '{Path.cwd()}'] + ['{self.site}'];"
        )
        code += " sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        self.script(name, f'#!/bin/sh\n[ "$1" = -IS ] && exit 0\nexec {sys.executable} -S -c "{code}" "$@"\n')

    def script(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def install(self, name: str, version: str, *, backends: Sequence[str] = ()) -> None:
        information = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        entries = "".join(f"{backend} = elastic_worker.torchrun:register\n" for backend in backends)
        (information / "entry_points.txt").write_text(f"[torchrun.handlers]\n{entries}")

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "ELASTIC_LIBRARY": str(self.library),
            "ELASTIC_JOB_UID": "0d9f",
            "ELASTIC_TERMINATION_LOG": str(self.log),
        } | environment
        return subprocess.run(["/bin/sh", "-c", WRAPPER, "elastic", *command], env=env, capture_output=True, text=True, cwd=self.root)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_the_library_is_appended_to_the_paths_of_the_image_and_the_user(image: Image) -> None:
    image.install("torch", "2.6.0+cpu")
    result = image.run("torchrun", "train.py", "a b", PYTHONPATH="/app:/lib")
    assert (result.returncode, result.stdout) == (0, f"ran /app:/lib:{image.library} train.py a b\n")
    assert image.run("torchrun").stdout == f"ran {image.library}\n"


def test_folders_with_our_names_in_the_users_working_folder_do_not_matter(image: Image) -> None:
    image.install("torch", "2.13.0")
    for name in ("elastic", "controller", "rendezvous", "autoscale"):
        (image.root / name).mkdir()
        (image.root / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    assert image.run("torchrun").returncode == 0


def test_a_torch_that_is_too_old_gives_up_with_the_reserved_status_and_message(image: Image) -> None:
    image.install("torch", "2.5.1")
    result = image.run("torchrun", "train.py")
    assert result.returncode == 119
    words = "torch 2.5.1 is installed, and the backend elastic needs at least 2.6"
    assert is_undeliverable({"exitCode": 119, "message": image.log.read_text()}, "0d9f") == words
    assert words in result.stderr


def test_an_image_without_torch_gives_up(image: Image) -> None:
    assert image.run("torchrun").returncode == 119
    assert "torch is not installed" in image.log.read_text()


def test_a_command_that_the_image_does_not_have_is_said(image: Image) -> None:
    image.install("torch", "2.13.0")
    result = image.run("torchrunn", "train.py")
    assert result.returncode == 127
    assert unmet(image.log.read_text(), "0d9f") == ("usage", "torchrunn: command not found")
    assert result.stderr == "torchrunn: command not found\n"


def test_an_image_that_brings_the_library_uses_its_own(image: Image) -> None:
    image.install("torch", "2.13.0")
    image.install("elastic-training", "0.1.0", backends=("elastic",))
    assert image.run("torchrun").stdout == "ran \n"


def test_a_library_in_the_image_that_lacks_the_jobs_backend_is_not_used(image: Image) -> None:
    image.install("torch", "2.13.0")
    image.install("elastic-training", "0.0.9", backends=("elastic",))
    assert image.run("torchrun", PET_RDZV_BACKEND="elastic-etcd").stdout == f"ran {image.library}\n"


def test_the_interpreter_of_torchrun_is_the_one_that_is_asked(image: Image) -> None:
    """A second python on PATH that has no torch must not decide."""
    image.install("torch", "2.13.0")
    image.script("python", "#!/bin/sh\necho 'not me' >&2\nexit 1\n")
    other = image.root / "other"
    other.mkdir()
    shutil.copy(image.bin / "torchrun", other / "torchrun")
    (image.bin / "torchrun").unlink()
    (image.bin / "python3").rename(other / "python3")
    (other / "torchrun").write_text((other / "torchrun").read_text().replace(str(image.bin), str(other)))
    assert image.run(str(other / "torchrun"), "x").stdout == f"ran {image.library} x\n"
    assert (
        image.run("sh", "-c", 'exec "$0/torchrun" y', str(other), PATH=f"{other}:{os.environ['PATH']}").stdout == f"ran {image.library} y\n"
    )


def test_a_torchrun_that_is_not_there_is_told_by_the_shell_alone(image: Image) -> None:
    (image.bin / "torchrun").unlink()
    tools = image.root / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "sleep"):
        (tools / name).symlink_to(f"/bin/{name}")
    image.install("torch", "2.6.0+cpu")
    result = image.run("torchrun", "train.py", PATH=f"{image.bin}:{tools}")
    assert result.returncode == 127
    assert "cannot open" not in result.stderr


def test_no_python_at_all_gives_up_too(image: Image) -> None:
    (image.bin / "torchrun").unlink()
    (image.bin / "python3").unlink()
    tools = image.root / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "sleep"):
        (tools / name).symlink_to(f"/bin/{name}")
    assert image.run("/bin/true", PATH=str(tools)).returncode == 119
    assert "no Python was found on PATH" in image.log.read_text()
