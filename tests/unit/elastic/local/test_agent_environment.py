"""Check the environment, command line, volumes, GPUs and probes of a container on the laptop cluster."""

from __future__ import annotations

import base64

import pytest
from pod_builder import container, pod

from elastic.local.agent import probes, volumes
from elastic.local.agent.devices import Devices
from elastic.local.agent.environment import ConfigError, Sources, command_line, environment, expand

CONFIG = {"data": {"greeting": "hello", "PLAIN": "1"}}
SECRET = {"data": {"token": base64.b64encode(b"s3cret").decode()}}


def sources(subject=None, **fields):
    given = {"config_maps": {"conf": CONFIG}, "secrets": {"sec": SECRET}, "node_capacity": {"cpu": "8", "memory": "16Gi"}}
    return Sources(pod=subject or pod(), **{**given, **fields})


def env_of(*entries, subject=None, **fields):
    made = container(env=list(entries), **fields)
    return environment(made, sources(subject), base={"PATH": "/bin"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)", "1"), ("x$(A)y$(B)", "x1y2"), ("$(MISSING)", "$(MISSING)"), ("$$(A)", "$(A)"), ("$A", "$A"), ("$(A", "$(A"), ("$$", "$")],
)
def test_references_to_known_variables_are_replaced(text, expected):
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_later_entries_may_refer_to_earlier_ones():
    env = env_of(
        {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(A)"}, {"name": "C", "value": "$(D)"}, {"name": "D", "value": "4"}
    )
    assert (env["B"], env["C"], env["PATH"]) == ("11", "$(D)", "/bin")


def test_variables_can_take_values_from_secrets_config_maps_and_pod_fields():
    subject = pod(status={"phase": "Pending", "podIP": "10.0.0.7"}, metadata={"labels": {"rank": "3"}})
    env = env_of(
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "token"}}},
        {"name": "HI", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "greeting"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['rank']"}}},
        subject=subject,
    )
    assert (env["TOKEN"], env["HI"], env["IP"], env["RANK"]) == ("s3cret", "hello", "10.0.0.7", "3")


def test_env_overrides_env_from():
    env = env_of(
        {"name": "greeting", "value": "mine"}, envFrom=[{"configMapRef": {"name": "conf"}}, {"prefix": "S_", "secretRef": {"name": "sec"}}]
    )
    assert (env["greeting"], env["PLAIN"], env["S_token"]) == ("mine", "1", "s3cret")


def test_the_error_about_a_missing_secret_or_key_names_it():
    with pytest.raises(ConfigError, match='secret "gone" not found'):
        env_of({"name": "A", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k"}}})
    with pytest.raises(ConfigError, match="couldn't find key nope in ConfigMap default/conf"):
        env_of({"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "nope"}}})


def test_a_missing_optional_reference_sets_no_variable():
    assert "A" not in env_of({"name": "A", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k", "optional": True}}})


def test_resource_fields_are_divided_by_their_divisor_and_rounded_up():
    limits = {"limits": {"memory": "1.5Gi", "cpu": "1500m"}}
    env = env_of(
        {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        subject=pod(container(resources=limits)),
        resources=limits,
    )
    assert (env["MEM"], env["CPU"]) == ("1536", "2")


def test_a_command_line_is_command_and_args_with_variables_replaced():
    assert command_line(container(command=["run", "$(A)"], args=["--n", "$(B)"]), {"A": "x", "B": "2"}) == ["run", "x", "--n", "2"]


def test_all_files_of_a_volume_are_replaced_in_one_step(tmp_path):
    volume = {"name": "v", "configMap": {"name": "conf", "items": [{"key": "greeting", "path": "deep/hi"}]}}
    volumes.write(tmp_path / "v", volumes.files_of(volume, sources(), {}))
    assert (tmp_path / "v/deep/hi").read_text() == "hello"
    changed = sources(config_maps={"conf": {"data": {"greeting": "bye"}}})
    volumes.write(tmp_path / "v", volumes.files_of(volume, changed, {}))
    assert (tmp_path / "v/deep/hi").read_text() == "bye"
    assert len(list((tmp_path / "v").glob("..[0-9]*"))) == 1


def test_a_removed_key_removes_its_file(tmp_path):
    volume = {"name": "v", "configMap": {"name": "conf"}}
    volumes.write(tmp_path / "v", volumes.files_of(volume, sources(), {}))
    volumes.write(tmp_path / "v", volumes.files_of(volume, sources(config_maps={"conf": {"data": {"PLAIN": "2"}}}), {}))
    assert sorted(path.name for path in (tmp_path / "v").iterdir() if not path.name.startswith("..")) == ["PLAIN"]


@pytest.mark.parametrize("path", ["/outside/x", "../x", "a/../../x"])
def test_a_path_that_leads_out_of_the_volume_is_refused(tmp_path, path):
    volume = {"name": "v", "configMap": {"name": "conf", "items": [{"key": "greeting", "path": path}]}}
    with pytest.raises(ConfigError, match="leads out of its volume"):
        volumes.write(tmp_path / "v", volumes.files_of(volume, sources(), {}))
    assert not list(tmp_path.rglob("x"))


def test_a_symlink_that_a_container_put_into_its_volume_is_not_followed(tmp_path):
    volume = {"name": "v", "configMap": {"name": "conf"}}
    volumes.write(tmp_path / "v", volumes.files_of(volume, sources(), {}))
    (tmp_path / "precious").mkdir()
    (tmp_path / "v/..data").unlink()
    (tmp_path / "v/..data").symlink_to("../precious")
    volumes.write(tmp_path / "v", volumes.files_of(volume, sources(), {}))
    assert (tmp_path / "precious").is_dir()
    assert (tmp_path / "v/greeting").read_text() == "hello"


@pytest.mark.parametrize("part", ["/etc", "../..", "link", "link/new", "a/../../x"])
def test_a_sub_path_that_leads_out_of_the_volume_is_refused(tmp_path, part):
    (tmp_path / "v").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "v/link").symlink_to(tmp_path / "elsewhere")
    wanted = container(volumeMounts=[{"name": "v", "mountPath": "/m", "subPath": part}])
    with pytest.raises(ConfigError, match="leads out of its volume"):
        volumes.mounts(wanted, {"v": tmp_path / "v"}, {})
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_sub_path_may_contain_environment_variables(tmp_path):
    wanted = container(volumeMounts=[{"name": "v", "mountPath": "/m", "subPathExpr": "runs/$(NAME)"}])
    (mount,) = volumes.mounts(wanted, {"v": tmp_path / "v"}, {"NAME": "first"})
    assert mount.source == str(tmp_path / "v/runs/first")
    assert (tmp_path / "v/runs/first").is_dir()


@pytest.mark.parametrize("name", ["../../../red", "a/b", "..", "a..b", ""])
def test_a_claim_name_that_leads_out_of_the_namespaces_folder_is_not_found(tmp_path, name):
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
    with pytest.raises(ConfigError, match="not found"):
        volumes.folder_of(volume, pod_folder=tmp_path / "pod", claims=tmp_path / "claims", namespace="ns")
    assert not list(tmp_path.iterdir())


def test_a_projected_volume_joins_token_config_map_and_fields():
    projected = {
        "sources": [
            {"serviceAccountToken": {"path": "token", "audience": "elastic-rendezvous", "expirationSeconds": 600}},
            {"configMap": {"name": "conf", "items": [{"key": "greeting", "path": "hi"}]}},
            {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]
    }
    volume = {"name": "v", "projected": projected}
    assert volumes.token_requests(volume) == {("elastic-rendezvous", 600)}
    files = volumes.files_of(volume, sources(), {("elastic-rendezvous", 600): "abc"})
    assert {path: file.content for path, file in files.items()} == {"token": b"abc", "hi": b"hello", "ns": b"default"}


def test_a_pod_names_everything_it_refers_to():
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}}]
    subject = pod(
        container(env=env, envFrom=[{"configMapRef": {"name": "c1"}}]),
        volumes=[{"name": "v", "secret": {"secretName": "s2"}}, {"name": "w", "projected": {"sources": [{"configMap": {"name": "c2"}}]}}],
    )
    assert volumes.in_volumes(subject) == ({"c2"}, {"s2"})
    assert volumes.in_environment(subject["spec"]["containers"][0]) == ({"c1"}, {"s1"})


def test_each_gpu_goes_to_one_container_which_keeps_it():
    wants = container(resources={"limits": {"nvidia.com/gpu": "2"}})
    devices = Devices(range(4, 8), {"old": {"main": [5]}})
    assert devices.give("p", wants) == (4, 6)
    assert devices.give("p", wants) == (4, 6)
    assert devices.give("q", container()) == ()
    with pytest.raises(ConfigError, match="2 GPUs asked for, and 1 of the node's 4 are free"):
        devices.give("r", wants)
    devices.take_back("old")
    assert devices.give("r", wants) == (5, 7)


def test_probes_change_the_state_after_the_threshold_of_results_in_a_row():
    subject = container(readinessProbe={"httpGet": {"port": 1}, "failureThreshold": 2}, startupProbe={"exec": {"command": ["x"]}})
    startup, readiness = probes.probes(subject)
    health = probes.at_start(subject)
    assert (health.started, health.ready) == (False, False)
    health = probes.judge(health, startup, probes.Tally(good=1), subject, "")
    assert (health.started, health.ready) == (True, False)
    health = probes.judge(health, readiness, probes.Tally(good=1), subject, "")
    assert health.ready
    assert probes.judge(health, readiness, probes.Tally(bad=1), subject, "no").ready
    assert not probes.judge(health, readiness, probes.Tally(bad=2), subject, "no").ready


def test_a_failed_liveness_probe_says_why_the_container_restarts():
    subject = container(livenessProbe={"tcpSocket": {"port": "web"}}, ports=[{"name": "web", "containerPort": 80}])
    (liveness,) = probes.probes(subject)
    sick = probes.judge(probes.at_start(subject), liveness, probes.Tally(bad=3), subject, "connection refused")
    assert sick.unhealthy == "Container main failed liveness probe, will be restarted: connection refused"
    assert probes.port_of(subject, "web") == 80
