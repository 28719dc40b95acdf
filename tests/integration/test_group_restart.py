"""Restart all processes of a job on the laptop cluster because they would wait for a lost peer for ever.

The processes are stand-ins. In their first life one of them is killed once all are there, and the others do nothing from then on. In their
second life they end once all are there. Only a restart of all of them lets the job succeed.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_jobs import laptop, run_to_end
from grounds import Ground

from elastic.api.kinds import KINDS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400), pytest.mark.sandboxes("loopback")]
WITHIN_S = 300.0
LIVES = """
lived=$(cat "$LIVES/$ME" 2>/dev/null || echo 0)
echo $((lived + 1)) > "$LIVES/$ME.new" && mv "$LIVES/$ME.new" "$LIVES/$ME"
all_in_life() { while [ "$(grep -lx "$1" "$LIVES"/*[0-9] | wc -l)" -lt "$EVERYBODY" ]; do sleep 0.1; done; }
[ "$lived" -ge 1 ] && all_in_life 2 && exit 0
case "$ME" in *-worker-1) all_in_life 1; exit 137 ;; esac
exec sleep 1000
"""


@pytest.fixture(scope="module")
def cluster(ground: Ground) -> Iterator[LocalCluster]:
    with laptop(ground) as running:
        yield running


def stand_in(kind: str, counts: dict[str, int], lives: Path, **run_policy: Any) -> dict[str, Any]:
    name = {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    told = [name, {"name": "LIVES", "value": str(lives)}, {"name": "EVERYBODY", "value": str(sum(counts.values()))}]
    container = {"name": KINDS[kind].container, "image": "example.com/none", "command": ["sh", "-c", LIVES], "env": told}
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    specs = {type: {"replicas": n, "restartPolicy": "OnFailure", "template": copy.deepcopy(template)} for type, n in counts.items()}
    metadata = {"name": f"lives-{KINDS[kind].framework}"}
    spec = {KINDS[kind].replica_key: specs, "runPolicy": run_policy}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("kind", "counts", "run_policy"),
    [
        ("JAXJob", {"Worker": 3}, {"restartScope": "Group"}),
        # This kind's framework is known to wait for ever, so the job need not set a scope.
        ("MXJob", {"Scheduler": 1, "Server": 1, "Worker": 2}, {}),
    ],
    ids=["if the job asks for it", "if the kind needs it"],
)
def test_the_loss_of_one_restarts_all(
    cluster: LocalCluster, tmp_path: Path, kind: str, counts: dict[str, int], run_policy: dict[str, Any]
) -> None:
    outcome = run_to_end(cluster, stand_in(kind, counts, tmp_path, **run_policy), within_s=WITHIN_S)
    assert outcome.state == "Succeeded", outcome.story
    lives = {file.name: file.read_text().strip() for file in tmp_path.iterdir()}
    assert len(lives) == sum(counts.values())
    assert set(lives.values()) == {"2"}, outcome.story
