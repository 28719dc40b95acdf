"""docs/migration.md is typed into a real API server that has the Training Operator's objects: no job is lost, new ones are accepted."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest
import yaml
from old_operators import OLD, Object, Typed, commands, deployment, job, namespace, operator, webhook

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]
REMOTE = re.compile(r"-k \"github\.com/\S+\"")


def until_refused(typed: Typed, wrong: Object, words: str) -> None:
    """Wait until the server refuses the job: it serves a new definition only a moment later."""
    give_up = time.monotonic() + 60
    while words not in (said := typed.run("kubectl create --dry-run=server -f -", yaml.safe_dump(wrong))).stderr:
        assert time.monotonic() < give_up, said
        time.sleep(0.2)


def test_a_cluster_of_the_training_operator_changes_hands_and_back_without_losing_a_job(typed: Typed, tmp_path: Path) -> None:
    theirs = operator()
    typed.apply(namespace("kubeflow"), namespace("elastic-system"), *theirs)
    typed.done("kubectl wait --for=condition=Established crd --all --timeout=60s")
    typed.apply(job("runs"))
    uid = typed.get("pytorchjob runs")["metadata"]["uid"]
    there = commands("## From the Training Operator")
    back = commands("### Back")
    for command in [one for one in there if one not in back]:
        said = typed.done(command)
        if "get deployments" in command:
            assert "training-operator" in said
        if "scale deployment" in command:
            typed.apply(webhook(OLD))
            refused = typed.run("kubectl create -f -", yaml.safe_dump(job("too-early")))
            assert (refused.returncode != 0, "failed calling webhook" in refused.stderr) == (True, True)
    kept = typed.get("pytorchjob runs")
    assert kept["metadata"]["uid"] == uid
    assert typed.run("kubectl -n kubeflow get deployment training-operator").returncode != 0
    typed.done("kubectl create -f -", yaml.safe_dump(job("new")))
    wrong = job("wrong")
    wrong["spec"]["elasticPolicy"]["maxReplicas"] = 0
    until_refused(typed, wrong, "maxReplicas")

    typed.apply(deployment("elastic-controller", "elastic-system"), webhook("elastic-webhook"))
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "all.yaml").write_text(yaml.safe_dump_all([*theirs, webhook(OLD)]))
    (manifests / "kustomization.yaml").write_text("resources: [all.yaml]\n")
    for command in back:
        typed.done(REMOTE.sub(f"-k {manifests}", command))
    assert typed.get("deployment -n elastic-system elastic-controller")["spec"]["replicas"] == 0
    assert typed.get("deployment -n kubeflow training-operator")["spec"]["replicas"] == 1
    assert typed.get("pytorchjob runs")["metadata"]["uid"] == uid
    assert "failed calling webhook" in typed.run("kubectl create -f -", yaml.safe_dump(job("later"))).stderr, "theirs is asked again"
