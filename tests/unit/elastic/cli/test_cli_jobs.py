"""Check what the commands about jobs request, change and print, and that no answer of the server ends in a traceback."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_api import Api, elastic, job, namespace, path_of, pod, running, served
from click.testing import Result

from elastic.local.files import ClusterState, Layout

RESCALE = {
    "at": "2026-01-01T01:00:00Z",
    "fromSize": 2,
    "toSize": 3,
    "cause": "plan",
    "reason": "train-worker-2 has come",
    "phases": {"drain": 1500},
}
BOUNDS = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 5}}


def asked(tmp_path: Path, api: Api, *words: str) -> Result:
    with served(api, tmp_path) as kubeconfig:
        return elastic(kubeconfig, *words)


def full() -> Api:
    state = running(lastRescale=RESCALE, restarts={"user": 1, "disruption": 2, "plan": 7}, ranks="1,0,2")
    api = Api(job(status=state, **BOUNDS), pod(0), pod(1), pod(2), job("other", kind="TFJob"))
    api.logs = {"train-worker-0": "zero\n", "train-worker-1": "one\n\x1b[31mred", "train-worker-2": "a\nb\nc\n"}
    return api


def test_get_shows_jobs_of_all_kinds_with_what_people_look_for(tmp_path: Path) -> None:
    said = asked(tmp_path, full(), "get")
    assert said.exit_code == 0, said.output
    lines = [line.split() for line in said.stdout.splitlines()]
    assert lines[0] == ["NAME", "KIND", "STATE", "WORKERS", "WORLD", "RESTARTS", "RESCALED", "AGE"]
    assert lines[1][:6] == ["other", "TFJob", "Pending", "0/3", "-", "0"]
    assert lines[2][:6] == ["train", "PyTorchJob", "Running", "3/3", "3", "3"]


@pytest.mark.parametrize("words", [["train"], ["pytorchjob/train"], ["pytorchjobs", "train"], ["PyTorchJob", "train"]])
def test_a_job_is_named_as_kubectl_would(tmp_path: Path, words: list[str]) -> None:
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        shown: Any = load(asked(tmp_path, full(), "get", *words, "-o", output).stdout)
        assert (shown["kind"], shown["metadata"]["name"]) == ("PyTorchJob", "train")
        assert "managedFields" not in shown["metadata"]


def test_get_prints_names_for_scripts(tmp_path: Path) -> None:
    assert asked(tmp_path, full(), "get", "-o", "name").stdout == "tfjob.kubeflow.org/other\npytorchjob.kubeflow.org/train\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["get", "trian"], "there is no job trian in namespace default; did you mean train?"),
        (["get", "pytorchjbo/train"], "there is no kind of job 'pytorchjbo'; did you mean pytorchjob?"),
        (["describe", "train", "-n", "research"], "there is no namespace research; make it with `kubectl create namespace research`"),
        (["get", "-n", "research"], "there is no namespace research"),
        (["logs", "train", "--rank", "7"], "pods: train-worker-0 (rank 1), train-worker-1 (rank 0), train-worker-2 (rank 2)"),
        (["evict", "train"], "name the worker to evict with --worker INDEX or --rank RANK"),
        (["scale", "other", "--workers", "x"], "'x' is not a valid integer"),
    ],
)
def test_a_missing_object_is_told_in_one_line(tmp_path: Path, words: list[str], line: str) -> None:
    said = asked(tmp_path, full(), *words)
    assert said.exit_code in (1, 2)
    assert line in said.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["get", "describe", "events", "explain", "logs", "wait", "suspend", "delete", "resume"])
@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        ((401, "Unauthorized"), "the API server does not accept your credentials: Unauthorized"),
        ((403, "jobs is forbidden"), "you may not do this: jobs is forbidden"),
        ((500, "etcd is gone"), "etcd is gone"),
    ],
)
def test_a_refusal_is_one_line(tmp_path: Path, command: str, refusal: tuple[int, str], line: str) -> None:
    api = full()
    api.refuses = refusal
    said = asked(tmp_path, api, command, "train")
    assert (said.exit_code, len(said.stderr.splitlines())) == (1, 1), said.output
    assert line in said.stderr


def test_a_cluster_without_our_kinds_says_how_to_define_them(tmp_path: Path) -> None:
    said = asked(tmp_path, Api(kinds=False), "get")
    assert said.exit_code == 1
    assert "does not know any kind of job; install the control plane with `elastic install`" in said.stderr


def test_a_server_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with served(full(), tmp_path) as kubeconfig:
        pass
    said = elastic(kubeconfig, "get")
    assert (said.exit_code, len(said.stderr.splitlines())) == (1, 1), said.output
    assert said.stderr.startswith("Error: the API server cannot be reached: http://127.0.0.1")


@pytest.mark.parametrize("text", ["", "a: [", "current-context: x", "- 1", "\x00\x01", "apiVersion: v1\ncurrent-context: a\ncontexts: 7"])
def test_a_broken_kubeconfig_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken").write_text(text)
    said = elastic(tmp_path / "broken", "get")
    assert said.exit_code == 1
    assert said.stderr.startswith(f"Error: kubeconfig {tmp_path}/broken")


def test_a_job_that_somebody_wrote_by_hand_is_shown_all_the_same(tmp_path: Path) -> None:
    odd = job(
        status={"conditions": ["x", {"type": "Running\x1b[2J"}], "elastic": {"restarts": [1], "lastRescale": 3}, "replicaStatuses": 7}
    )
    odd["spec"] = {"pytorchReplicaSpecs": {"Worker": {"replicas": "many"}}, "elasticPolicy": {}}
    for command in ("get", "describe", "explain"):
        said = asked(tmp_path, Api(odd), command, "train")
        assert said.exit_code == 0, (command, said.output, said.exception)
        assert "\x1b" not in said.output


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_terminal_controls_are_escaped_in_data_too(tmp_path: Path, output: str) -> None:
    """A terminal takes U+009B for the begin of a command as it takes ESC [, and U+202E turns the rest of the line around."""
    words = "caf\u00e9 \x9b2J \u202e \x1b[2J \x7f \U000e0001"
    status = running()
    status["conditions"][0]["message"] = words
    said = asked(tmp_path, Api(job(status=status)), "get", "train", "-o", output).stdout
    assert said.replace("\n", "").isprintable()
    read = json.loads(said) if output == "json" else yaml.safe_load(said)
    assert read["status"]["conditions"][0]["message"] == words


def test_numbers_that_are_none_are_no_reason_to_fail(tmp_path: Path) -> None:
    """Python's `isdigit` takes more characters for digits than `int` can read, and any number of them."""
    odd = pod(0)
    odd["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "\u00b2"}]
    odd["metadata"]["labels"]["training.kubeflow.org/replica-index"] = "9" * 63
    many = pod(1)
    many["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "9" * 5000}]
    one = job(status=running(ranks="\u00b2,1," + "9" * 5000))
    for command in ("get", "describe", "top", "logs"):
        said = asked(tmp_path, Api(one, odd, many), command, "train")
        assert said.exit_code == 0, (command, said.output, said.exception)


def test_describe_shows_size_ranks_and_events(tmp_path: Path) -> None:
    api = full()
    about = {"kind": "PyTorchJob", "name": "train", "uid": "uid-train"}
    event = {
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": about,
        "reason": "Rescaled",
        "message": "from 2 to 3",
        "type": "Normal",
    }
    api.objects["/api/v1/namespaces/default/events/e"] = event
    said = asked(tmp_path, api, "describe", "train").stdout
    assert "Workers:    3 running, 3 wanted, 1 to 4 allowed" in said
    ranks = {line.split()[0]: line.split()[1] for line in said.splitlines() if "-worker-" in line and "Running" in line}
    assert ranks == {"train-worker-0": "1", "train-worker-1": "0", "train-worker-2": "2"}
    assert "from 2 to 3" in said
    assert "from 2 to 3" in asked(tmp_path, api, "events", "train").stdout
    assert json.loads(asked(tmp_path, api, "describe", "train", "-o", "json").stdout).keys() == {"job", "pods", "events"}


def test_logs_are_those_of_all_pods_or_of_one_rank(tmp_path: Path) -> None:
    said = asked(tmp_path, full(), "logs", "train").stdout
    assert said.splitlines()[:2] == ["train-worker-0 | zero", "train-worker-1 | one"]
    assert asked(tmp_path, full(), "logs", "train", "--rank", "0", "--no-prefix").stdout == "one\n\x1b[31mred\n"
    assert asked(tmp_path, full(), "logs", "train", "--worker", "2", "--tail", "2", "--no-prefix").stdout == "b\nc\n"
    api = full()
    del api.logs["train-worker-1"]
    earlier = asked(tmp_path, api, "logs", "train", "--pod", "train-worker-1", "--previous").stderr
    assert "what it printed since its start is in `elastic logs train`" in earlier, "torchrun restarts processes, not the container"
    said_of_one = asked(tmp_path, api, "logs", "train", "--pod", "train-worker-1")
    assert "train-worker-1: container of train-worker-1 has not begun" in said_of_one.stderr


def test_a_namespace_without_jobs_is_said_to_have_none(tmp_path: Path) -> None:
    said = asked(tmp_path, Api(namespace("default")), "get", "train").stderr
    assert said == "Error: there is no job train in namespace default, nor any other; see `elastic get -A`\n"


def test_changes_reach_the_api(tmp_path: Path) -> None:
    api = full()
    here = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/train"
    with served(api, tmp_path) as kubeconfig:
        assert "scaled from 3 to 4 workers" in elastic(kubeconfig, "scale", "train", "--workers", "4").stdout
        assert ("PATCH", f"{here}/scale", {"metadata": {"uid": "uid-train"}, "spec": {"replicas": 4}}) in api.asked
        assert "has 4 workers already" in elastic(kubeconfig, "scale", "train", "--replicas", "4").stdout
        assert "suspended" in elastic(kubeconfig, "suspend", "train").stdout
        assert api.objects[here]["spec"]["runPolicy"] == {"suspend": True}
        assert elastic(kubeconfig, "resume", "train").stdout == "PyTorchJob default/train resumed\n"
        assert api.objects[here]["spec"]["runPolicy"] == {"suspend": False}
        assert "is not suspended" in elastic(kubeconfig, "resume", "train").stdout
        assert "pod default/train-worker-1 gone" in elastic(kubeconfig, "evict", "train", "--rank", "0").stdout
        assert elastic(kubeconfig, "delete", "train", "--no-wait").stdout == "PyTorchJob train deleted\n"
        assert here not in api.objects
        assert "there is no job train" in elastic(kubeconfig, "delete", "train").stderr
        assert elastic(kubeconfig, "delete", "train", "--ignore-not-found").exit_code == 0
        assert elastic(kubeconfig, "wait", "train", "--for", "deleted").exit_code == 0
        assert elastic(kubeconfig, "wait", "train", "--for", "delete", "--timeout", "1m").exit_code == 0
        assert elastic(kubeconfig, "wait", "train", "--for", "deleted", "-n", "nowhere").exit_code == 1
        assert elastic(kubeconfig, "wait", "train").exit_code == 1


def test_scale_takes_the_number_behind_the_job(tmp_path: Path) -> None:
    api = full()
    assert "scaled from 3 to 4 workers" in asked(tmp_path, api, "scale", "train", "4").stdout
    assert "scaled from 4 to 2 workers" in asked(tmp_path, api, "scale", "pytorchjob", "train", "2").stdout
    said = asked(tmp_path, api, "scale", "train")
    assert (said.exit_code, "how many workers should train have? Give a number: elastic scale train 3" in said.stderr) == (2, True)


@pytest.mark.parametrize(
    ("typed", "remedy"),
    [("cancel", "`elastic delete JOB`"), ("ps", "`elastic get`"), ("submit", "`elastic run FILE`"), ("attach", "`elastic logs -f JOB`")],
)
def test_a_command_of_other_tools_is_answered_with_ours(tmp_path: Path, typed: str, remedy: str) -> None:
    said = asked(tmp_path, full(), typed, "train")
    assert (said.exit_code, f"there is no command '{typed}'; " in said.stderr, remedy in said.stderr) == (2, True, True)


@pytest.mark.parametrize("words", [("scale", "train", "--workers", "2"), ("suspend", "train")])
def test_a_job_that_got_the_name_meanwhile_is_not_changed(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The command looked at one job and patched by its name."""
    api, answer = full(), Api.answer
    here = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/train"
    before = api.objects[here]["spec"]

    def replaced(method: str, url: str, body: Any) -> tuple[int, Any]:
        if method == "PATCH":
            api.objects[here]["metadata"]["uid"] = "uid-of-the-next"
        return answer(api, method, url, body)

    api.answer = replaced  # type: ignore[method-assign]
    said = asked(tmp_path, api, *words)
    assert said.exit_code == 1
    assert said.stderr == "Error: PyTorchJob train was deleted meanwhile, and another job may have its name; look at it first\n"
    assert api.objects[here]["spec"] == before


def test_a_deletion_that_takes_too_long_says_so(tmp_path: Path) -> None:
    said = asked(tmp_path, full(), "delete", "train", "--timeout", "0.2")
    assert "not gone after 0 s" in said.stderr


def test_a_finished_job_is_not_scaled(tmp_path: Path) -> None:
    over = running()
    over["conditions"].append({"type": "Succeeded", "status": "True"})
    said = asked(tmp_path, Api(job(status=over)), "scale", "train", "--workers", "4")
    assert "PyTorchJob train has ended (succeeded)" in said.stderr


def test_top_shows_what_workers_use_and_how_far_training_is(tmp_path: Path) -> None:
    api = full()
    usage = [{"name": "pytorch", "usage": {"cpu": "1500m", "memory": "64Mi"}}, {"name": "side", "usage": {"cpu": "250m", "memory": "1Mi"}}]
    metadata = {"name": "train-worker-0", "namespace": "default"}
    measured = {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": metadata, "containers": usage}
    api.objects[path_of(measured)] = measured
    api.objects["/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/train"]["status"]["elastic"] |= {
        "step": 400,
        "autoscaler": {"throughput": "512"},
    }
    said = asked(tmp_path, api, "top", "train")
    assert said.exit_code == 0, said.output
    rows = {line.split()[1]: line.split() for line in said.stdout.splitlines()[2:5]}
    assert rows["train-worker-0"] == ["train", "train-worker-0", "1", "Running", "node-0", "1750m", "65Mi"]
    assert rows["train-worker-1"][-2:] == ["-", "-"]
    assert said.stdout.splitlines()[0] == "PyTorchJob train: world 3, step 400, throughput 512", "a small terminal shows it, too"
    assert json.loads(asked(tmp_path, api, "top", "-o", "json").stdout)["workers"][0]["cpu"] == 1.75


def test_doctor_looks_at_the_controller_that_lives_not_at_what_one_left(tmp_path: Path) -> None:
    def lease(namespace: str, holder: str, renewed: str | None) -> dict[str, Any]:
        metadata = {"name": "elastic-controller", "namespace": namespace}
        spec = {"holderIdentity": holder, "renewTime": renewed}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    now = datetime.now(UTC).isoformat()
    left = (lease("a", "former", "2026-01-01T00:00:00Z"), lease("b", "", now), lease("c", "odd", None))
    assert "led by one in namespace z" in asked(tmp_path, Api(*left, lease("z", "one", now)), "doctor").stdout
    none = asked(tmp_path, Api(left[1]), "doctor")
    assert "none runs: nobody holds the Lease elastic-controller in namespace b" in none.stdout


def test_doctor_says_what_is_amiss(tmp_path: Path) -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "a"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "4"}},
    }
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "elastic-controller", "namespace": "elastic"}}
    lease["spec"] = {"holderIdentity": "one", "renewTime": datetime.now(UTC).isoformat()}
    well = asked(tmp_path, Api(node, lease), "doctor")
    assert well.exit_code == 0, well.output
    assert "1 of 1 ready, 4 GPUs" in well.stdout
    assert "led by one in namespace elastic" in well.stdout
    lease["spec"]["renewTime"] = "2026-01-01T00:00:00Z"
    ill = asked(tmp_path, Api(lease, kinds=False), "doctor")
    assert ill.exit_code == 1
    bad = {line.split()[1] for line in ill.stdout.splitlines() if line.startswith("bad")}
    assert bad == {"kinds", "nodes", "controller"}


@pytest.mark.parametrize("has_control_plane", [True, False])
def test_doctor_says_that_a_cluster_alone_has_no_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_control_plane: bool
) -> None:
    state = ClusterState(
        supervisor=os.getpid(),
        sandbox="loopback",
        server="",
        kubeconfig="",
        nodes=1,
        gpus=0,
        control_plane=has_control_plane,
        processes={},
    )
    (tmp_path / "laptop").mkdir()
    Layout(tmp_path / "laptop").write_state(state)
    monkeypatch.setattr("elastic.cli.cluster_choice._folder_of", lambda kubeconfig: tmp_path / "laptop")
    said = asked(tmp_path, Api(kinds=has_control_plane), "doctor").stdout
    remedy = "`elastic down`, then `elastic up` without --cluster-only"
    alone = f"no control plane runs, because the cluster was started with --cluster-only: it runs pods, but no jobs; {remedy} starts one"
    assert ("one of the laptop cluster's processes" in said) == has_control_plane
    assert (alone in said) == (f"{remedy} brings them" in said) == (not has_control_plane)
    assert "elastic install" not in said


def test_doctor_names_the_wrong_rows_of_the_data_folders_signals(tmp_path: Path) -> None:
    (tmp_path / "signals.yaml").write_text("signals:\n- {name: a}\n")
    from click.testing import CliRunner

    from elastic.cli import main

    said = CliRunner().invoke(main, ["doctor", "--data-dir", str(tmp_path)])
    assert said.exit_code == 1
    assert "row 1 (a), seenIn: it is missing" in said.stdout


@pytest.mark.parametrize(("typed", "meant"), [("runn", "run"), ("gte", "get")])
def test_a_command_that_is_not_there_is_guessed(typed: str, meant: str) -> None:
    from click.testing import CliRunner

    from elastic.cli import main

    said = CliRunner().invoke(main, [typed])
    assert (said.exit_code, said.stderr.splitlines()[-1]) == (2, f"Error: there is no command '{typed}'; did you mean {meant}?")


def test_doctor_looks_at_the_folder_of_the_cluster_that_kubeconfig_names(tmp_path: Path) -> None:
    """It looked at ~/.elastic, which may be missing, full or another's."""
    from click.testing import CliRunner

    from elastic.cli import main

    layout = Layout(tmp_path / "lab")
    layout.root.mkdir()
    for path in (layout.lock, layout.kubeconfig, layout.root / "ca.key"):
        path.write_text("")
    said = CliRunner().invoke(main, ["doctor"], env={"KUBECONFIG": str(layout.kubeconfig)}).stdout
    assert f"none runs in {layout.root}; `elastic up --detach --data-dir {layout.root}` starts one there" in said
    assert ".elastic" not in said
