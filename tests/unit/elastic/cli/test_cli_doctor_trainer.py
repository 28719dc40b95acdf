"""`elastic doctor` says which controller serves TrainJobs, and what is wrong with that."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cli_api import elastic, path_of, served
from installing_cluster import SYSTEM, Cluster, install, installed
from test_cli_install_trainer import defined, lease, public, trainers

from elastic.api.trainer.modes import Mode, holder_of_trainer
from elastic.cli.served_train_jobs import BAD, NOTE, OK, Facts, verdict

OURS, THEIRS = ("kubeflow-system", holder_of_trainer(SYSTEM)), ("kubeflow-system", "trainer_1")
ELSEWHERE = ("kubeflow", "trainer_2")


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (Facts(False), OK, "the cluster does not know them; `elastic install --trainjobs instead` brings them"),
        (Facts(False, Mode.INSTEAD), BAD, "the cluster does not know them"),
        (Facts(True, Mode.INSTEAD, [OURS]), OK, "all by our controller, which holds the Lease"),
        (
            Facts(True, Mode.INSTEAD, [OURS], "kubeflow-system/trainer"),
            NOTE,
            "deployment kubeflow-system/trainer of Kubeflow Trainer waits",
        ),
        (
            Facts(True, Mode.INSTEAD, [OURS, ELSEWHERE]),
            BAD,
            "two controllers serve all of them: ours, and trainer_2 (Lease trainer.kubeflow.org",
        ),
        (
            Facts(True, Mode.INSTEAD, [THEIRS]),
            BAD,
            "all by trainer_1 (Lease trainer.kubeflow.org in namespace kubeflow-system); ours waits",
        ),
        (Facts(True, Mode.INSTEAD), BAD, "nobody serves them: our controller does not hold the Lease"),
        (
            Facts(True, Mode.BESIDE, [THEIRS], "a/b", "v2.3.0"),
            OK,
            "those with the label elastic-training/controller=elastic by our controller; the others by trainer_1",
        ),
        (Facts(True, Mode.BESIDE, [THEIRS], "a/b", "v2.2.0"), BAD, "upgrade it to 2.3.0"),
        (Facts(True, Mode.BESIDE), BAD, "nobody serves the others"),
        (Facts(True, Mode.OFF, [THEIRS]), OK, "all by trainer_1"),
        (Facts(True, Mode.OFF), NOTE, "nobody serves them; `elastic install --trainjobs instead` lets our controller do it"),
        (Facts(True, Mode.OFF, [OURS]), OK, "all by our controller"),
    ],
)
def test_it_says_who_serves_and_what_is_wrong(facts: Facts, state: str, words: str) -> None:
    found = verdict(facts)
    assert found[0] == state
    assert words in found[1]


def told(cluster: Cluster, folder: Path) -> str:
    with served(cluster, folder) as kubeconfig:
        said = elastic(kubeconfig, "doctor", "-o", "json")
    (found,) = [one for one in json.loads(said.stdout) if one["what"] == "TrainJobs"]
    return f"{found['state']}: {found['words']}"


def test_it_reads_the_mode_the_leases_and_the_release_from_the_cluster(tmp_path: Path) -> None:
    renewed = lease("trainer_1")
    renewed["spec"]["renewTime"] = datetime.now(UTC).isoformat()
    cluster = Cluster(*defined(), trainers(1), public("v2.3.0"), renewed)
    assert told(cluster, tmp_path).startswith("ok: all by trainer_1")
    cluster = installed(tmp_path, "--trainjobs", "instead")
    assert told(cluster, tmp_path).startswith("bad: nobody serves them")
    cluster.objects[path_of(renewed)] = lease("trainer_1")
    assert told(cluster, tmp_path).startswith("bad: nobody serves them"), "it was renewed long ago"
    cluster.objects[path_of(renewed)] = renewed
    assert told(cluster, tmp_path).startswith("bad: all by trainer_1")
    assert install(cluster, tmp_path, "--trainjobs", "beside").exit_code == 0
    assert told(cluster, tmp_path).startswith("ok: those with the label elastic-training/controller=elastic")
