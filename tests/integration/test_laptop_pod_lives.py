"""How pods of the laptop cluster, real processes in both sandboxes, begin, end and outlive the cluster's own processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from grounds import Ground
from laptop import NAMESPACE, alive, container, get, gone, kill, make, phase, pod, shell, until

from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import CONFIG_MAPS, NAMESPACES, NODES, POD_DISRUPTION_BUDGETS, PODS, SERVICE_ACCOUNTS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180), pytest.mark.sandboxes("netns", "loopback")]


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("pods"), nodes=2, control_plane=False) as running:
        yield running


async def test_no_process_outlives_its_pod_even_in_a_session_of_its_own(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"tree-{unique}"
    stubborn = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000') & while true; do sleep 1000; done"
    await make(kube, pod(name, shell(stubborn)))
    await phase(kube, name, "Running")
    pids = await until(lambda: len(found := cluster.pids(NAMESPACE, name)) >= 4 and found, "the whole tree")
    await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=1)
    await gone(kube, name)
    assert alive(pids) == []


async def test_a_container_that_fails_runs_again_and_tells_how_it_ended(kube: Kube, unique: str) -> None:
    name = f"again-{unique}"
    await make(kube, pod(name, shell("exit 7"), restartPolicy="OnFailure"))

    async def second_failure() -> dict | None:
        found = await get(kube, name)
        main = (found or {}).get("status", {}).get("containerStatuses", [{}])[0]
        return main if main.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff" else None

    main = await until(second_failure, "a back-off")
    assert main["restartCount"] == 1
    assert main["lastState"]["terminated"]["exitCode"] == 7
    await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def test_a_killed_container_ends_with_137(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"killed-{unique}"
    await make(kube, pod(name, container("sleep", "1000")))
    await phase(kube, name, "Running")
    pids = await until(lambda: cluster.pids(NAMESPACE, name), "its process")
    os.kill(pids[0], signal.SIGKILL)
    done = await phase(kube, name, "Failed")
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


async def test_pods_outlive_the_agent_and_their_exit_codes_are_not_lost(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    steady, brief = f"steady-{unique}", f"brief-{unique}"
    await make(kube, pod(steady, container("sleep", "1000")), pod(brief, shell('until [ -e "$TMPDIR/go" ]; do sleep 0.05; done; exit 9')))
    for name in (steady, brief):
        await phase(kube, name, "Running")
    before = await until(lambda: cluster.pids(NAMESPACE, steady), "its process")
    agents = cluster.processes()["agents"]
    os.kill(agents, signal.SIGSTOP)
    for scratch in cluster.data_dir.glob("nodes/*/*/scratch"):
        (scratch / "go").touch()
    await until(lambda: not cluster.pids(NAMESPACE, brief), "the brief one has ended unseen")
    await kill(cluster, "agents")
    done = await phase(kube, brief, "Failed")
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 9
    assert cluster.pids(NAMESPACE, steady) == before
    # Without grace the object goes at once, and the processes right after it.
    await kube.delete(PODS, steady, namespace=NAMESPACE, grace_s=0)
    await until(lambda: not alive(before), "its process has ended")


async def test_pods_outlive_the_api_server(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"survivor-{unique}"
    await make(kube, pod(name, shell('until [ -e "$TMPDIR/go" ]; do sleep 0.05; done')))
    await phase(kube, name, "Running")
    await kill(cluster, "apiserver")
    for scratch in cluster.data_dir.glob("nodes/*/*/scratch"):
        (scratch / "go").touch()
    await phase(kube, name, "Succeeded")


async def test_the_dependents_of_a_gone_owner_are_collected(kube: Kube, unique: str) -> None:
    owner, owned = f"owner-{unique}", f"owned-{unique}"
    await make(kube, pod(owner, container("sleep", "1000")))
    made = await phase(kube, owner, "Running")
    reference = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": made["metadata"]["uid"], "controller": True}
    metadata = {"name": owned, "ownerReferences": [reference]}
    await make(kube, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await kube.delete(PODS, owner, namespace=NAMESPACE)
    await gone(kube, owned, resource=CONFIG_MAPS)


async def test_a_namespace_is_emptied_and_then_goes(kube: Kube, unique: str) -> None:
    await kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}})
    await until(lambda: get(kube, "default", resource=SERVICE_ACCOUNTS, namespace=unique), "the namespace has its account")
    await kube.create(PODS, pod("p", container("sleep", "1000")), namespace=unique)
    await kube.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}, namespace=unique)
    await kube.delete(NAMESPACES, unique)
    await gone(kube, unique, resource=NAMESPACES, namespace=None)


async def test_an_eviction_waits_for_its_budget(kube: Kube, unique: str) -> None:
    labels = {"app": unique}
    budget = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    await make(
        kube,
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": unique}, "spec": budget},
        pod(f"a-{unique}", container("sleep", "1000"), labels=labels),
    )
    await phase(kube, f"a-{unique}", "Running")

    async def allowed(count: int) -> bool:
        found = await kube.get(POD_DISRUPTION_BUDGETS, unique, namespace=NAMESPACE)
        return (found.get("status") or {}).get("currentHealthy") == count

    await until(lambda: allowed(1), "the budget has counted one")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": f"a-{unique}"}}
    with pytest.raises(KubeError) as refused:
        await kube.create(PODS, body, namespace=NAMESPACE, name=f"a-{unique}", subresource="eviction")
    assert refused.value.code == 429
    await make(kube, pod(f"b-{unique}", container("sleep", "1000"), labels=labels))
    await until(lambda: allowed(2), "the budget has counted two")
    await kube.create(PODS, body, namespace=NAMESPACE, name=f"a-{unique}", subresource="eviction")
    await gone(kube, f"a-{unique}")
    await kube.delete(PODS, f"b-{unique}", namespace=NAMESPACE, grace_s=0)


async def test_a_cordoned_node_gets_no_pods(kube: Kube, unique: str) -> None:
    for node in ("node-0", "node-1"):
        await kube.patch(NODES, node, {"spec": {"unschedulable": True}}, kind=Patch.MERGE)
    await make(kube, pod(unique, container("true")))

    async def unschedulable() -> bool:
        found = await get(kube, unique) or {}
        conditions = {entry["type"]: entry for entry in found.get("status", {}).get("conditions") or ()}
        return "0/2 nodes are available" in conditions.get("PodScheduled", {}).get("message", "")

    await until(unschedulable, "the scheduler says why")
    for node in ("node-0", "node-1"):
        await kube.patch(NODES, node, {"spec": {"unschedulable": None}}, kind=Patch.MERGE)
    await phase(kube, unique, "Succeeded")


async def test_probes_say_when_a_pod_is_ready_and_when_it_has_to_start_again(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"probed-{unique}"
    serve = 'cd "$TMPDIR"; touch well; exec python -m http.server 8766'
    ready = {"httpGet": {"path": "/well", "port": 8766}, "periodSeconds": 1}
    alive_probe = {"exec": {"command": ["sh", "-c", 'test -e "$TMPDIR/well"']}, "periodSeconds": 1, "failureThreshold": 1}
    started = {"tcpSocket": {"port": 8766}, "periodSeconds": 1, "failureThreshold": 60}
    probed = shell(serve, readinessProbe=ready, livenessProbe=alive_probe, startupProbe=started)
    await make(kube, pod(name, probed, restartPolicy="Always", terminationGracePeriodSeconds=1))

    async def state(restarts: int) -> bool:
        main = ((await get(kube, name) or {}).get("status", {}).get("containerStatuses") or [{}])[0]
        return bool(main.get("ready") and main.get("restartCount") == restarts)

    await until(lambda: state(0), "it is ready")
    uid = (await kube.get(PODS, name, namespace=NAMESPACE))["metadata"]["uid"]
    (well,) = cluster.data_dir.glob(f"nodes/*/{uid}/scratch/well")
    well.unlink()
    await until(lambda: state(1), "it was started again and is ready")
    await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def test_a_container_prepares_for_its_end_before_it_is_told(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name, proof = f"polite-{unique}", cluster.data_dir / f"proof-{unique}"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", f"echo hook >> {proof}; sleep 0.5"]}}}
    script = f"trap 'echo term >> {proof}; exit 0' TERM; echo ready >> {proof}; while true; do sleep 0.05; done"
    await make(kube, pod(name, shell(script, lifecycle=hook), terminationGracePeriodSeconds=30))
    await until(lambda: proof.exists(), "it listens")
    await kube.delete(PODS, name, namespace=NAMESPACE)
    await gone(kube, name)
    assert proof.read_text().split() == ["ready", "hook", "term"]


async def test_a_container_that_grows_beyond_its_limit_is_out_of_memory(kube: Kube, unique: str) -> None:
    name = f"hungry-{unique}"
    grow = "import time\nheld = bytearray(300 << 20)\ntime.sleep(1000)"
    await make(kube, pod(name, container("python", "-c", grow, resources={"limits": {"memory": "100Mi"}})))
    done = await phase(kube, name, "Failed")
    ended = done["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
