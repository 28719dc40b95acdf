"""Reading a job: defaults, new and stored jobs, and mistakes that only deserve a warning."""

from __future__ import annotations

import copy

import pytest
from written_jobs import job, job_names

from elastic.api import KINDS, SpecError, parse
from elastic.api.crd import crd
from elastic.api.job import ElasticPolicy
from elastic.api.places import places_of
from elastic.api.words import Cause, CleanPodPolicy, ManagedBy, RestartPolicy, SuccessPolicy


def warned(obj, *, stored=False):
    return [str(warning) for warning in parse(obj, stored=stored)[1]]


@pytest.mark.parametrize("name", job_names())
def test_the_object_is_never_changed(name):
    obj = job(name)
    before = copy.deepcopy(obj)
    parse(obj)
    assert obj == before


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_unset_fields_have_upstreams_defaults(kind):
    containers = [{"name": kind.container, "image": "x"}]
    types = {*kind.required, "Worker"}
    spec = {kind.replica_key: {name: {"template": {"spec": {"containers": containers}}} for name in types}}
    read, warnings = parse({"apiVersion": "kubeflow.org/v1", "kind": kind.name, "metadata": {"name": "bare"}, "spec": spec})
    assert warnings == []
    assert {name: spec.replicas for name, spec in read.replicas.items() if name != "Worker"} == dict.fromkeys(kind.required, 1)
    assert read.workers == (0 if kind.name == "MPIJob" else 1)
    expected = RestartPolicy.ON_FAILURE if kind.name in ("PyTorchJob", "PaddleJob") else RestartPolicy.NEVER
    assert {spec.restart_policy for spec in read.replicas.values()} == {expected}
    assert read.run_policy.clean_pod_policy is CleanPodPolicy.NONE
    assert not read.run_policy.suspend
    assert read.options.nproc_per_node == ("auto" if kind.name == "PyTorchJob" else None)
    assert read.options.slots_per_worker == 1
    assert read.elastic is None
    assert (read.least_workers, read.most_workers) == (read.workers, read.workers)


def test_every_field_of_a_static_job_is_read():
    read = parse(job("pytorch-static"))[0]
    assert read.key == ("default", "pytorch-static")
    assert read.metadata.annotations == {"example.com/owner": "ada"}
    assert (read.options.nproc_per_node, read.run_policy.backoff_limit, read.run_policy.ttl_seconds_after_finished) == ("2", 3, 86400)
    assert read.run_policy.managed_by is ManagedBy.TRAINING_OPERATOR
    assert list(read.replicas) == ["Master", "Worker"]
    assert read.replicas["Worker"].template["spec"]["containers"][1] == {"name": "logs", "image": "example.com/logs:1"}


def test_replica_types_are_taken_in_any_case_and_put_in_upstreams_order():
    read = parse(job("gang"))[0]
    assert list(read.replicas) == ["Master", "Worker"]
    assert read.workers == 2


def test_mpi_takes_the_older_place_of_clean_pod_policy_but_run_policy_wins():
    assert parse(job("mpi-static"))[0].run_policy.clean_pod_policy is CleanPodPolicy.RUNNING
    both = job("mpi-static", {"spec": {"runPolicy": {"cleanPodPolicy": "All"}}})
    assert parse(both)[0].run_policy.clean_pod_policy is CleanPodPolicy.ALL


def test_an_older_nproc_keeps_the_newer_one_unset():
    read = parse(job("pytorch-elastic-etcd"))[0]
    assert read.options.nproc_per_node is None
    assert read.elastic is not None
    assert read.elastic.n_proc_per_node == 2


def test_tf_success_policy_may_be_the_empty_word():
    assert parse(job("tf-multi-worker"))[0].options.success_policy is SuccessPolicy.DEFAULT
    assert parse(job("tf-parameter-server"))[0].options.success_policy is SuccessPolicy.ALL_WORKERS


def test_an_empty_rdzv_conf_is_none_at_all():
    assert (
        parse(job("pytorch-elastic", {"spec": {"elasticPolicy": {"rdzvConf": []}}}))[0].elastic
        == parse(job("pytorch-elastic", {"spec": {"elasticPolicy": {"rdzvConf": None}}}))[0].elastic
    )


def test_null_is_the_same_as_absent():
    bare = job("pytorch-smallest")
    padded = job("pytorch-smallest")
    padded["spec"] |= {"runPolicy": None, "elasticPolicy": None, "nprocPerNode": None}
    padded["spec"]["pytorchReplicaSpecs"]["Worker"] |= {"replicas": None, "restartPolicy": None}
    padded["status"] = None
    assert parse(padded)[0] == parse(bare)[0]


@pytest.mark.parametrize(
    ("written", "replicas", "bounds"),
    [
        ({}, 3, (3, 3)),
        ({"minReplicas": 1, "maxReplicas": 5}, 3, (1, 5)),
        ({"maxReplicas": 5}, 3, (5, 5)),
        ({"minReplicas": 2}, 3, (2, 3)),
        ({"minReplicas": 2}, 2, (2, 2)),
    ],
)
def test_missing_bounds_follow_from_the_other_or_from_replicas(written, replicas, bounds):
    obj = job("pytorch-elastic-etcd")
    obj["spec"]["elasticPolicy"] = written
    obj["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = replicas
    assert parse(obj)[0].bounds == bounds


def test_a_maximum_alone_is_also_the_minimum_and_its_author_is_told():
    obj = job("pytorch-elastic", {"spec": {"elasticPolicy": {"minReplicas": None}}})
    (warning,) = warned(obj)
    assert warning.startswith(
        "spec.elasticPolicy.maxReplicas: minReplicas is not set and so is 8 like maxReplicas; the job waits with 2 workers"
    )


@pytest.mark.parametrize(("replicas", "run", "said"), [(9, 8, "maxReplicas is 8; 8 are run"), (0, 1, "minReplicas is 1; 1 are run")])
def test_a_stored_job_outside_its_bounds_is_clamped_and_goes_on(replicas, run, said):
    obj = job("pytorch-elastic", {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": replicas}}}})
    assert parse(obj, stored=True)[0].workers == run
    (warning,) = warned(obj, stored=True)
    assert said in warning


def test_a_stored_static_job_without_workers_keeps_them_at_none_with_a_warning():
    obj = job("pytorch-static", {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 0}}}})
    assert parse(obj, stored=True)[0].workers == 0
    assert warned(obj, stored=True) == ["spec.pytorchReplicaSpecs.Worker.replicas: Worker.replicas is 0; a PyTorchJob needs at least 1"]


def test_a_count_that_is_no_allowed_size_is_rounded_down_with_a_warning():
    obj = job("pytorch-elastic-ours", {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 7}}}})
    message = "spec.pytorchReplicaSpecs.Worker.replicas: Worker.replicas is 7, which sizeStep does not allow; 6 train together"
    assert message in warned(obj)


def test_every_field_of_our_own_is_applied_so_nothing_is_remarked():
    assert warned(job("pytorch-elastic-ours")) == []


def test_allowed_sizes():
    listed, stepped, free = ElasticPolicy(allowed_sizes=(2, 4, 8)), ElasticPolicy(size_step=3), ElasticPolicy()
    assert [listed.largest_allowed(n) for n in (0, 1, 2, 7, 8, 100)] == [0, 0, 2, 4, 8, 8]
    assert [stepped.largest_allowed(n) for n in (0, 2, 3, 8)] == [0, 0, 3, 6]
    assert all(free.is_allowed(n) and free.largest_allowed(n) == n for n in range(5))
    assert not listed.is_allowed(3)


def test_unknown_fields_are_warnings_with_a_suggestion():
    obj = job("pytorch-smallest")
    obj["spec"]["elasticpolicy"] = {}
    obj["spec"]["runPolicy"] = {"backoffLimits": 3}
    worker = obj["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"] = {"spec": {"containers": [{"name": "pytorch", "image": "x", "comand": ["a"], "imagePullPolicy": "Allways"}]}}
    at = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]"
    assert warned(obj) == [
        "spec.elasticpolicy: unknown field, it has no effect; did you mean elasticPolicy?",
        "spec.runPolicy.backoffLimits: unknown field, it has no effect; did you mean backoffLimit?",
        f"{at}.comand: unknown field, it has no effect; did you mean command?",
        f'{at}.imagePullPolicy: imagePullPolicy is "Allways"; Kubernetes knows Always, IfNotPresent or Never; did you mean Always?',
    ]


def test_a_field_that_stands_elsewhere_in_the_kind_names_its_place():
    spec = {"scalingPolicy": {}, "suspend": True, "replicas": 3, "slotsPerWorker": 1, "key": "a", "runPolicy": {"minReplicas": 1}}
    assert warned(job("pytorch-smallest", {"spec": spec})) == [
        "spec.scalingPolicy: unknown field, it has no effect; did you mean spec.elasticPolicy.scalingPolicy?",
        "spec.suspend: unknown field, it has no effect; did you mean spec.runPolicy.suspend?",
        "spec.replicas: unknown field, it has no effect; did you mean spec.pytorchReplicaSpecs.Worker.replicas?",
        "spec.slotsPerWorker: unknown field, it has no effect",  # an MPIJob has it
        "spec.key: unknown field, it has no effect",  # entries of a list have it
        "spec.runPolicy.minReplicas: unknown field, it has no effect; did you mean spec.elasticPolicy.minReplicas?",
    ]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_place_that_is_named_is_one_of_the_kinds_schema(kind):
    places = places_of(kind)
    assert {"suspend", "minReplicas", "scalingPolicy", "queue"} <= set(places)
    assert "cleanPodPolicy" not in places or "clean_pod_policy" not in kind.options, "it would have two places"
    for name, place in places.items():
        schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for part in place.split("."):
            schema = schema["properties"][part] if "properties" in schema else schema["additionalProperties"]
        assert place.endswith(f".{name}")


def test_a_template_without_possible_pods_is_only_a_warning_and_names_the_place():
    container = {
        "name": "pytorch",
        "image": "x",
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "kept", "mountPath": "/k"}],
    }
    container["env"] = [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "B", "value": ""}]
    spec = {"containers": [container], "volumes": [{"name": "kept", "emptyDir": {}}]}
    labels = {"a b": "x", "team": "-", "example.com/ok": "", "fine": "Yes_1.0"}
    replicas = {"Worker": {"template": {"metadata": {"labels": labels}, "spec": spec}}}
    obj = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j"}}
    obj["spec"] = {"nprocPerNode": "many", "pytorchReplicaSpecs": replicas}
    at = "spec.pytorchReplicaSpecs.Worker.template"
    assert warned(obj) == [
        f'{at}.metadata.labels: "a b" cannot be the key of a label; use letters, digits, -, _ and . and at most 63 of them',
        f'{at}.metadata.labels.team: team is "-"; a label\'s value has letters, digits, -, _ and . and at most 63 of them',
        f'{at}.spec.containers[0].volumeMounts[0].name: there is no volume "data"; name one of the template, or no pod can be made',
        f"{at}.spec.containers[0].env[0]: A has value and valueFrom; keep one, no pod can be made with both",
        'spec.nprocPerNode: nprocPerNode is "many"; torchrun knows a number of at least 1, auto, cpu, gpu or xpu',
    ]


def test_a_broken_status_is_ignored_part_by_part():
    status = {
        "conditions": [{"type": "Running", "status": "True", "unheardOf": 1}],
        "replicaStatuses": "broken",
        "startTime": "2026-01-31T12:00:00Z",
        "elastic": {"generation": 7, "counted": ["u1"]},
    }
    read, warnings = parse(job("pytorch-elastic") | {"status": status})
    assert [c.type for c in read.status.conditions] == ["Running"]
    assert read.status.replica_statuses == {}
    assert read.status.elastic is not None
    assert (read.status.elastic.generation, read.status.elastic.counted) == (7, ("u1",))
    assert [str(w) for w in warnings] == [
        'status.replicaStatuses: replicaStatuses is "broken"; an object is needed; this part of status is ignored',
    ]


def test_only_what_the_job_did_itself_is_charged():
    assert {cause for cause in Cause if cause.is_charged} == {Cause.OUT_OF_MEMORY, Cause.HANG, Cause.USER}


def test_another_case_and_a_slip_in_metadata_are_warned_about():
    obj = job("gang", {"metadata": {"label": {"a": "b"}}})
    assert warned(obj) == [
        "metadata.label: unknown field, it has no effect; did you mean labels?",
        "spec.pytorchReplicaSpecs.master: master is taken as Master; write Master, the only word that kubectl scale and other tools know",
        "spec.pytorchReplicaSpecs.WORKER: WORKER is taken as Worker; write Worker, the only word that kubectl scale and other tools know",
    ]


def test_scaling_a_job_without_bounds_to_a_size_it_may_not_have_rounds_down_and_fails_nothing():
    obj = job("pytorch-elastic-etcd")
    obj["spec"]["elasticPolicy"] = {"sizeStep": 2}
    obj["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 5
    read = parse(obj, stored=True)[0]
    assert read.bounds == (4, 5)


@pytest.mark.parametrize("sizes", [[1], [1, 4]])
def test_sizes_that_lose_the_state_of_a_drained_single_worker_are_warned_of(sizes):
    policy = {"minReplicas": 1, "maxReplicas": 4, "allowedSizes": sizes, "rdzvBackend": None}
    single = {"elasticPolicy": policy, "pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}
    assert warned(job("pytorch-elastic", {"spec": single})) == [
        "spec.elasticPolicy.allowedSizes: allowedSizes has 1 but not 2, so a single worker cannot pass its state to its replacement when "
        "its node is drained; allow 2 as well, or save checkpoints to storage that outlives the pod"
    ]


@pytest.mark.parametrize(
    "policy", [{"allowedSizes": [1, 2, 4]}, {"sizeStep": 2, "minReplicas": 2}, {"allowedSizes": [1], "rdzvBackend": "c10d"}]
)
def test_other_sizes_are_not(policy):
    merged = {"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": None, **policy}
    single = {"elasticPolicy": merged, "pytorchReplicaSpecs": {"Worker": {"replicas": merged["minReplicas"]}}}
    assert warned(job("pytorch-elastic", {"spec": single})) == []


OURS = {"rdzvBackend": None, "minReplicas": 1}


@pytest.mark.parametrize(
    ("policy", "workers", "field", "count"),
    [
        ({"maxReplicas": 9000}, 1, "elasticPolicy.maxReplicas", "maxReplicas is 9000"),
        ({"maxReplicas": 10_000, "rdzvBackend": "elastic"}, 9000, "elasticPolicy.maxReplicas", "maxReplicas is 10000"),
        ({"maxReplicas": None, "minReplicas": 8193}, 8193, "elasticPolicy.minReplicas", "minReplicas is 8193"),
        ({"maxReplicas": None}, 8193, "pytorchReplicaSpecs.Worker.replicas", "Worker.replicas is 8193"),
    ],
)
def test_a_job_with_more_workers_than_the_rendezvous_server_takes_is_refused(policy, workers, field, count):
    obj = job("pytorch-elastic", {"spec": {"elasticPolicy": OURS | policy, "pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}})
    (name,) = {"maxReplicas", "minReplicas", "Worker.replicas"} & set(count.split())
    message = f"spec.{field}: {count}, but the rendezvous server takes at most 8192 workers of a job; lower {name}, or set rdzvBackend c10d"
    with pytest.raises(SpecError) as refused:
        parse(obj)
    assert [str(problem) for problem in refused.value.problems] == [message]
    assert message in warned(obj, stored=True)


def test_an_mpi_job_with_more_workers_than_the_rendezvous_server_lists_is_warned_of():
    obj = job("mpi-horovod-elastic", {"spec": {"elasticPolicy": {"maxReplicas": 9000}}})
    message = "maxReplicas is 9000, but the rendezvous server takes at most 8192 workers of a job; lower maxReplicas"
    assert f"spec.elasticPolicy.maxReplicas: {message}" in warned(obj)


@pytest.mark.parametrize(
    ("policy", "command"),
    [
        ({"maxReplicas": 8192}, ["torchrun"]),
        ({"rdzvBackend": "c10d"}, ["torchrun"]),
        ({"rdzvBackend": "etcd"}, ["torchrun"]),
        ({"workerLibrary": "None"}, ["torchrun"]),
        ({"rdzvHost": "elsewhere"}, ["torchrun"]),
        ({}, ["torchrun", "--rdzv-backend=c10d"]),
        ({}, None),
    ],
)
def test_a_job_whose_workers_meet_elsewhere_may_have_more(policy, command):
    obj = job("pytorch-elastic", {"spec": {"elasticPolicy": {"maxReplicas": 10_000} | OURS | policy}})
    (container,) = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["command"] = command
    assert parse(obj)[0].most_workers >= 8192


def test_a_stored_job_stays_valid_when_its_sizes_or_its_maximum_change():
    sizes = job("pytorch-elastic", {"spec": {"elasticPolicy": {"allowedSizes": [2, 4, 8]}}})
    assert "minReplicas is 1, which allowedSizes does not allow" in warned(sizes, stored=True)[0]
    grown = job("pytorch-elastic", {"metadata": {"name": "x" * 53}, "spec": {"elasticPolicy": {"maxReplicas": 2000}}})
    assert parse(grown, stored=True)[0].workers == 2
    with pytest.raises(SpecError, match="shorten it by 2"):
        parse(grown)


def test_a_time_without_a_zone_is_not_taken():
    read = parse(job("pytorch-elastic") | {"status": {"startTime": "2026-01-31T12:00:00", "completionTime": "2026-01-31T12:00:00Z"}})[0]
    assert read.status.start_time is None
    assert read.status.completion_time is not None


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (
            {"policy": "capacity", "minGainPercent": 20},
            "minGainPercent has no effect with policy capacity; remove it or choose another policy",
        ),
        ({"totalSteps": 5}, "totalSteps has no effect with policy throughput; remove it or choose another policy"),
        ({"priceLabel": "price"}, "priceLabel has no effect with policy throughput; remove it or choose another policy"),
        (
            {"windows": [{"start": "08:00", "end": "09:00", "replicas": 1}]},
            "windows has no effect with policy throughput; remove it or choose another policy",
        ),
        ({"finishBy": "2027-01-01T00:00:00Z"}, "finishBy has no effect with policy throughput; remove it or choose another policy"),
    ],
)
def test_a_field_that_the_scaling_policy_does_not_look_at_is_warned_of(policy, says):
    (warning,) = warned(job("pytorch-elastic", {"spec": {"elasticPolicy": {"metrics": None, "scalingPolicy": policy}}}))
    assert warning.endswith(says)


@pytest.mark.parametrize(
    ("count", "elastic", "says"),
    [
        (9, {}, "replicas is 9 but maxReplicas is 4; the job has 4 then, change one of them"),
        (
            9,
            {"minReplicas": 2, "maxReplicas": 5, "sizeStep": 2},
            "replicas is 9 but maxReplicas is 5; the job has 4 then, change one of them",
        ),
        (1, {"minReplicas": 2}, "replicas is 1 but minReplicas is 2; the job has 2 then, change one of them"),
        (3, {"minReplicas": 2, "sizeStep": 2}, "replicas is 3, which sizeStep does not allow; the job has 2 then"),
        (3, {"allowedSizes": [1, 2, 4]}, "replicas is 3, which allowedSizes does not allow; the job has 2 then"),
    ],
)
def test_a_window_that_asks_for_what_the_job_may_not_have_is_warned_of(count, elastic, says):
    windows = [{"start": "08:00", "end": "09:00", "replicas": 2}, {"start": "09:00", "end": "10:00", "replicas": count}]
    policy = {"metrics": None, "maxReplicas": 4, "scalingPolicy": {"policy": "schedule", "windows": windows}, **elastic}
    (warning,) = warned(job("pytorch-elastic", {"spec": {"elasticPolicy": policy}}))
    assert warning == f"spec.elasticPolicy.scalingPolicy.windows[1].replicas: {says}"


def test_a_field_that_needs_a_scaling_policy_or_another_one_is_warned_of():
    source = {"logPattern": "step {step}"}
    (alone,) = warned(job("pytorch-elastic", {"spec": {"elasticPolicy": {"progress": source}}}))
    assert alone == "spec.elasticPolicy.progress: progress has no effect without scalingPolicy; add one or remove progress"
    (through,) = warned(job("pytorch-elastic", {"spec": {"elasticPolicy": {"scalingPolicy": {"policy": "hpa", "through": "hpa"}}}}))
    assert through.startswith("spec.elasticPolicy.scalingPolicy.through: through has no effect with policy hpa")


def test_the_annotation_for_strict_compatibility_has_no_effect_and_its_author_hears_that() -> None:
    body = copy.deepcopy(job(job_names()[0]))
    body["metadata"]["annotations"] = {"elastic-training/compat": "strict"}
    _, warnings = parse(body)
    said = {warning.at: warning.message for warning in warnings}
    assert "has no effect any more; remove it" in said["metadata", "annotations", "elastic-training/compat"]
