"""Check that a real API server answers the rendezvous server's questions, and takes the objects of the backend c10d."""

from account_tokens import ONLY_THE_CONTROLLER_MAY, account_token, who_may_control

from elastic.kube.client import Kube
from elastic.kube.resources import CONFIG_MAPS, NETWORK_POLICIES, PODS, SERVICES
from elastic_training.rendezvous.c10d import C10dStore, store_network_policy, store_pod, store_service

STRICT = {"fieldValidation": "Strict"}


async def test_only_the_controllers_account_speaks_for_the_control_plane(kube: Kube, namespace: str) -> None:
    assert await who_may_control(kube, namespace=namespace) == ONLY_THE_CONTROLLER_MAY


async def test_pod_service_and_network_policy_of_a_store_are_taken_as_they_are(kube: Kube, namespace: str) -> None:
    await account_token(kube, "default", namespace=namespace)  # pods need the account; a controller manager may not have made it yet
    job = await kube.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job"}}, namespace=namespace)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "job", "uid": job["metadata"]["uid"], "controller": True}
    store = C10dStore(
        job_name="train",
        namespace=namespace,
        job_uid=job["metadata"]["uid"],
        owner=owner,
        template={"spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "pytorch", "image": "example.com/train:1"}]}},
        selector={"training.kubeflow.org/job-name": "train"},
    )
    policy = store_network_policy(store)
    assert policy is not None
    for resource, wanted in ((PODS, store_pod(store)), (SERVICES, store_service(store)), (NETWORK_POLICIES, policy)):
        made = await kube.request("POST", resource.path(namespace=namespace), body=wanted, params=STRICT)
        assert contains(made["spec"], wanted["spec"]), resource.plural
        assert made["metadata"]["labels"] == wanted["metadata"]["labels"]


def contains(whole: object, part: object) -> bool:
    """Return whether the whole holds the part unchanged. A server may have added defaults."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) >= len(part) and all(any(contains(one, other) for one in whole) for other in part)
    return whole == part
