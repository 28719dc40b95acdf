"""The objects of the backend c10d: what they hold, and that a user's own settings win."""

from typing import Any

from elastic_training.rendezvous.c10d import C10dStore, c10d_env, store_network_policy, store_pod, store_service


def store(**spec: Any) -> C10dStore:
    container = {"name": "pytorch", "image": "trainer:1", "imagePullPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"spec": {"containers": [{"name": "sidecar", "image": "other"}, container], **spec}}
    return C10dStore(
        job_name="train",
        namespace="team",
        job_uid="0d9f",
        owner={"kind": "PyTorchJob", "name": "train", "uid": "0d9f"},
        template=template,
        selector={"training.kubeflow.org/job-name": "train"},
    )


def test_the_store_pod_runs_the_workers_image_without_their_gpus_and_is_no_replica() -> None:
    pod = store_pod(store(tolerations=[{"key": "spot"}]))
    container = pod["spec"]["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("trainer:1", "Always")
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert pod["spec"]["restartPolicy"] == "Always"
    assert pod["spec"]["tolerations"] == [{"key": "spot"}]
    assert not any(label.startswith("training.kubeflow.org/") for label in pod["metadata"]["labels"])
    assert pod["metadata"]["name"] == "train-rdzv"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "0d9f"


def test_the_store_never_uses_the_hosts_network_and_then_has_no_policy() -> None:
    shared = store(hostNetwork=True)
    assert "hostNetwork" not in store_pod(shared)["spec"]
    assert store_network_policy(shared) is None


def test_only_the_jobs_pods_reach_the_store() -> None:
    made = store()
    policy = store_network_policy(made)
    assert policy is not None
    assert policy["spec"]["podSelector"]["matchLabels"] == store_service(made)["spec"]["selector"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= store_pod(made)["metadata"]["labels"].items()
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"training.kubeflow.org/job-name": "train"}}}]


def test_a_users_rendezvous_settings_win_over_the_tuning() -> None:
    given = [("last_call_timeout", "60"), ("mine", "1")]
    env = {entry["name"]: entry["value"] for entry in c10d_env(store(), given, rendezvous_id="0d9f-1-0")}
    conf = env["PET_RDZV_CONF"].split(",")
    assert conf[:2] == ["last_call_timeout=60", "mine=1"]
    assert "last_call_timeout=2" not in conf
    assert "keep_alive_interval=1" in conf
    assert env["PET_RDZV_ENDPOINT"] == "train-rdzv:29400"
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_workers_have_the_rendezvous_id_that_they_are_given() -> None:
    env = {entry["name"]: entry["value"] for entry in c10d_env(store(), rendezvous_id="0d9f-1-0")}
    assert env["PET_RDZV_ID"] == "0d9f-1-0"


def test_agents_wait_for_workers_that_find_no_room_for_days() -> None:
    """An agent below min gave up after 600 s and closed the rendezvous: once there was room, every agent ended, and then the job."""
    env = {entry["name"]: entry["value"] for entry in c10d_env(store(), rendezvous_id="0d9f-1-0")}
    conf = dict(pair.split("=") for pair in env["PET_RDZV_CONF"].split(","))
    assert int(conf["join_timeout"]) >= 30 * 24 * 3600


def test_the_same_job_gives_the_same_objects() -> None:
    assert (store_pod(store()), store_service(store())) == (store_pod(store()), store_service(store()))
