"""Run by a Python that has the official client and nothing of ours: `official_client.py KUBECONFIG`.

Does what programs do that were written against the package kubernetes, and prints as one line of JSON what it saw.
"""

import json
import sys
import time
from importlib.metadata import version

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

NAMESPACE = "default"
GROUP = ("kubeflow.org", "v1", NAMESPACE, "pytorchjobs")
NAME = f"led-by-{version('kubernetes').split('.')[0]}"
WAIT_S = 120
SCRIPT = "echo ready; while [ ! -e /gate/open ]; do sleep 0.1; done; echo done"
JOBS = {"group": "kubeflow.org", "version": "v1", "namespace": NAMESPACE, "plural": "pytorchjobs"}


def job() -> dict:
    mounts = [{"name": "gate", "mountPath": "/gate"}]
    container = {"name": "pytorch", "image": "any", "command": ["sh", "-c", SCRIPT], "volumeMounts": mounts}
    template = {"spec": {"containers": [container], "volumes": [{"name": "gate", "emptyDir": {}}]}}
    replicas = {"Worker": {"replicas": 1, "restartPolicy": "Never", "template": template}}
    policy = {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d", "rdzvHost": "nobody"}
    spec = {"elasticPolicy": policy, "pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": NAME}, "spec": spec}


def is_running(pod: client.V1Pod) -> bool:
    return pod.status.phase == "Running"


def wait_for(listing, holds, **selection) -> list:
    """Follow a list until one of its objects is as wanted, and return the kinds of the events until then."""
    seen, watcher = [], watch.Watch()
    for event in watcher.stream(listing, timeout_seconds=WAIT_S, **selection):
        seen.append(event["type"])
        if holds(event["object"]):
            watcher.stop()
            return seen
    raise SystemExit(f"never, after {seen}: {selection}")


def run(core: client.CoreV1Api, pod: str, *command: str) -> str:
    options = {"stdout": True, "stderr": True, "stdin": False, "tty": False}
    return stream(core.connect_get_namespaced_pod_exec, pod, NAMESPACE, command=list(command), **options).strip()


def refused(call, *arguments) -> int:
    try:
        call(*arguments)
    except ApiException as error:
        return error.status
    return 0


def main() -> None:
    config.load_kube_config(sys.argv[1])
    core, custom, policies = client.CoreV1Api(), client.CustomObjectsApi(), client.PolicyV1Api()
    seen: dict = {"version": version("kubernetes"), "server": client.VersionApi().get_code().major}
    custom.create_namespaced_custom_object(*GROUP, job())
    seen["again"] = refused(custom.create_namespaced_custom_object, *GROUP, job())
    pods = {"namespace": NAMESPACE, "label_selector": f"training.kubeflow.org/job-name={NAME}"}
    seen["events"] = wait_for(core.list_namespaced_pod, is_running, **pods)
    worker = f"{NAME}-worker-0"
    pod = core.read_namespaced_pod(worker, NAMESPACE)
    seen["owner"] = [(owner.kind, owner.name) for owner in pod.metadata.owner_references]
    seen["started"] = pod.status.start_time.year
    seen["selected"] = [item.metadata.name for item in core.list_namespaced_pod(NAMESPACE, field_selector=f"metadata.name={worker}").items]
    seen["named"] = run(core, worker, "hostname")

    seen["scale"] = custom.get_namespaced_custom_object_scale(*GROUP, NAME)["spec"]["replicas"]
    custom.patch_namespaced_custom_object_scale(*GROUP, NAME, {"spec": {"replicas": 2}})
    wait_for(core.list_namespaced_pod, lambda item: item.metadata.name == f"{NAME}-worker-1" and is_running(item), **pods)
    seen["too few"] = refused(custom.patch_namespaced_custom_object_scale, *GROUP, NAME, {"spec": {"replicas": 0}})
    for name in (worker, f"{NAME}-worker-1"):
        run(core, name, "touch", "/gate/open")
    wait_for(
        custom.list_namespaced_custom_object,
        lambda item: (item.get("status") or {}).get("completionTime"),
        field_selector=f"metadata.name={NAME}",
        **JOBS,
    )
    status = custom.get_namespaced_custom_object_status(*GROUP, NAME)["status"]
    seen["conditions"] = [entry["type"] for entry in status["conditions"] if entry["status"] == "True"]
    # As bytes: 36 writes them out as Python does, b'...'.
    seen["log"] = core.read_namespaced_pod_log(worker, NAMESPACE, _preload_content=False).data.decode().split()
    # Events follow the status that they describe.
    of_job = f"involvedObject.name={NAME}"
    wait_for(core.list_namespaced_event, lambda event: event.reason == "PyTorchJobSucceeded", namespace=NAMESPACE, field_selector=of_job)
    seen["reasons"] = sorted({event.reason for event in core.list_namespaced_event(NAMESPACE, field_selector=of_job).items})
    seen["budgets"] = [item.metadata.name for item in policies.list_namespaced_pod_disruption_budget(NAMESPACE).items]
    custom.delete_namespaced_custom_object(*GROUP, NAME, propagation_policy="Foreground")
    end = time.monotonic() + WAIT_S
    while not refused(custom.get_namespaced_custom_object, *GROUP, NAME):
        if time.monotonic() > end:
            raise SystemExit(f"{NAME} is not gone {WAIT_S} s after it was deleted in the foreground, when all of its own are to go first")
        time.sleep(0.2)
    seen["left"] = [pod.metadata.name for pod in core.list_namespaced_pod(**pods).items]
    seen["gone"] = refused(custom.get_namespaced_custom_object, *GROUP, NAME)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
