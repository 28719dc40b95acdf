"""`elastic validate` and `elastic crds` as a user meets them: lines, paths, exit codes, JSON, completion."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from written_jobs import FIXTURES, job

from elastic.api import KINDS
from elastic.api.extent import MOST_DEPTH
from elastic.cli import main
from elastic.cli.documents import MOST_DOUBLED, Unreadable, documents
from elastic.local import etcd


def elastic(*arguments: str | Path, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], input=stdin, env=env, prog_name="elastic", catch_exceptions=False)


def values(text: str) -> list:
    return [document.value for document in documents(text)]


def test_a_finish_that_has_passed_is_told_before_the_job_is_made(tmp_path: Path) -> None:
    policy = {"policy": "deadline", "finishBy": "2020-01-31T12:00:00Z", "totalSteps": 5}
    (tmp_path / "job.yaml").write_text(
        json.dumps(job("pytorch-elastic", {"spec": {"elasticPolicy": {"metrics": None, "scalingPolicy": policy}}}))
    )
    told = elastic("validate", tmp_path / "job.yaml")
    assert (told.exit_code, "finishBy is 2020-01-31T12:00:00Z, before 2" in told.stdout) == (0, True)
    assert elastic("validate", "--strict", tmp_path / "job.yaml").exit_code == 1


BAD = """\
# two jobs and something else
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: first}
spec:
  elasticPolicy:
    minReplica: 1
    maxReplicas: 4
  pytorchReplicaSpecs:
    Worker:
      replicas: 9
      template:
        spec:
          containers:
          - name: pytorch
            image: x
            env:
            - name: DEBUG
              value: yes
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: second}
spec:
  pytorchReplicaSpecs:
    Worker: {template: {spec: {containers: [{name: pytorch, image: x}]}}}
"""


def test_each_problem_has_its_line_its_path_and_what_to_do(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    result = elastic("validate", file)
    assert result.exit_code == 1
    at = "spec.pytorchReplicaSpecs.Worker"
    assert result.stdout.splitlines() == [
        f"{file}:7: warning: spec.elasticPolicy.minReplica: unknown field, it has no effect; did you mean minReplicas?",
        f"{file}:11: error: {at}.replicas: Worker.replicas is 9 but maxReplicas is 4; lower replicas or raise maxReplicas",
        f'{file}:19: error: {at}.template.spec.containers[0].env[0].value: value is true, a boolean; write it in quotes: "true"',
        f"{file}:2: PyTorchJob first is invalid",
        f"{file}:30: warning: {at}.template.spec.containers[0]: has no command, so the image's own runs; "
        "the laptop cluster runs no images and needs one",
        f"{file}:25: PyTorchJob second is valid",
        "2 jobs: 1 valid, 1 invalid, 1 other object skipped",
    ]


def test_an_anchor_and_a_merge_are_followed_to_the_line_of_the_value(tmp_path):
    file = tmp_path / "merged.yaml"
    file.write_text(
        textwrap.dedent("""\
        apiVersion: kubeflow.org/v1
        kind: PyTorchJob
        metadata: {name: merged}
        spec:
          pytorchReplicaSpecs:
            Master: &replica
              template:
                spec: {containers: [{name: pytorch, image: 5}]}
            Worker:
              <<: *replica
              replicas: 1
              replicas: 2
        """)
    )
    lines = elastic("validate", file).stdout.splitlines()
    assert f"{file}:8: error: spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].image: image is 5, a number" in "\n".join(lines)
    assert f"{file}:12: error: spec.pytorchReplicaSpecs.Worker.replicas: replicas appears twice; keep one" in lines


def test_all_valid_is_exit_code_0_and_other_objects_are_passed_over():
    result = elastic("validate", FIXTURES / "jobs")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].endswith(" valid, 0 invalid")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("apiVersion: v1\nkind: Service\n", "Service"),
        ("apiVersion: v1\nkind: Service\n---\napiVersion: apps/v1\nkind: Deployment\n---\nkind: Service\n", "Service (2), Deployment"),
        ("version: '3'\nservices: {web: {image: nginx}}\n", "an object without kind (version, services)"),
        ("---\n".join(f"kind: K{i}\n" for i in range(7)), "K0, K1, K2, K3, K4, 2 more kinds"),
        ('kind: "a\\e[31m"\n', "a?[31m"),
        ("{}", "an object without kind (empty)"),
    ],
)
def test_a_file_without_jobs_says_what_is_in_it_and_what_a_job_is(text, found):
    """`elastic run deployment.yaml` answered `0 jobs` and nothing else."""
    said = elastic("validate", "-", stdin=text).stdout.splitlines()
    assert said[0].startswith("0 jobs: 0 valid, 0 invalid, ")
    assert said[1].startswith(f"found {found}; jobs are PyTorchJob, ")
    assert said[1].endswith(" of kubeflow.org/v1")
    run = elastic("run", "-", stdin=text)
    assert (run.exit_code, run.stderr.splitlines()) == (2, [*said, "a script needs no job file: `elastic run train.py`"])


def test_a_folder_is_searched_for_yaml_and_json_but_not_for_hidden_files(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep" / "er" / "a.json").write_text(json.dumps(job("jax"), indent="\t"))
    (tmp_path / "b.yml").write_text(yaml.safe_dump(job("pytorch-elastic")))
    (tmp_path / ".git" / "c.yaml").write_text("{")
    (tmp_path / "notes.txt").write_text("{")
    result = elastic("validate", tmp_path)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "2 jobs: 2 valid, 0 invalid")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: [}", ":1: error: cannot be read: this is not YAML: "),
        (b"a: b: c", ":1: error: cannot be read: this is not YAML: "),
        (b"\xff\xfe\x00", ": error: cannot be read: this is not UTF-8 text"),
        (b"[" * 5000, f":1: error: cannot be read: this is nested more than {MOST_DEPTH} deep"),
        (b"a: &a [*a]", ":1: error: cannot be read: an alias contains itself"),
        (b"a: *b", ":1: error: cannot be read: this is not YAML: "),
    ],
)
def test_an_unreadable_file_is_exit_code_2_with_the_line(tmp_path, text, said):
    file = tmp_path / "x.yaml"
    file.write_bytes(text)
    result = elastic("validate", file)
    assert result.exit_code == 2
    assert f"{file}{said}" in result.stdout


def test_a_file_that_is_not_there_is_exit_code_2_and_the_others_are_still_looked_at(tmp_path):
    result = elastic("validate", tmp_path / "none.yaml", FIXTURES / "jobs" / "jax.yaml")
    assert result.exit_code == 2
    assert "none.yaml: error: cannot be read: No such file or directory" in result.stdout
    assert "JAXJob jax is valid" in result.stdout


def test_a_similar_name_is_offered_for_a_missing_file(tmp_path, monkeypatch):
    for name in ("train.py", "job.yaml", ".hidden.py"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    said = {
        word: elastic("run", word).stderr for word in ("trian.py", "train", "jbo.yaml", "./none.sh", "no/such.py", f"{tmp_path}/trian.py")
    }
    assert said["trian.py"] == "Error: there is no file trian.py; did you mean train.py?\n"
    assert said[f"{tmp_path}/trian.py"] == f"Error: there is no file {tmp_path}/trian.py; did you mean {tmp_path}/train.py?\n"
    assert said["train"].startswith("train: error: cannot be read: No such file or directory; did you mean train.py?\n")
    assert said["jbo.yaml"].startswith("jbo.yaml: error: cannot be read: No such file or directory; did you mean job.yaml?\n")
    assert said["./none.sh"] == "Error: there is no file ./none.sh\n"
    assert said["no/such.py"] == "Error: there is no file no/such.py\n"
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/job.yaml").write_text("")
    assert "; did you mean examples/job.yaml?\n" in elastic("run", "exmaples/jbo.yaml").stderr
    (tmp_path / "folder.py").mkdir()
    assert elastic("run", "folder.py").stderr == "Error: there is no file folder.py\n"


def test_aliases_that_multiply_are_refused_before_they_fill_the_memory():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(Unreadable, match="aliases written out"):
        values("\n".join(lines))


def test_json_output_says_the_same_for_machines(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD.split("---")[0])
    result = elastic("validate", "--output", "json", file)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    (judged,) = found["jobs"]
    assert (found["valid"], judged["kind"], judged["name"], judged["line"], judged["valid"]) == (False, "PyTorchJob", "first", 2, False)
    assert judged["problems"][0] == {
        "path": "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].env[0].value",
        "line": 19,
        "message": 'value is true, a boolean; write it in quotes: "true"',
    }
    assert [warning["line"] for warning in judged["warnings"]] == [7]


def test_a_slip_in_kind_or_version_is_told_and_not_passed_over():
    result = elastic("validate", "-", stdin="apiVersion: kubeflow.org/v1\nkind: PytorchJob\nmetadata: {name: a}\nspec: {}\n")
    assert "-:2: error: kind: kind is" in result.stdout
    assert result.exit_code == 1
    assert elastic("validate", "-", stdin="apiVersion: kubeflow.org/v1\nkind: Notebook\n").exit_code == 0


def test_words_and_numbers_mean_what_they_mean_to_kubectl():
    text = (
        "{a: yes, b: 'yes', c: 12:30, d: 2026-01-31, e: 1e3, f: 0777, g: 0x10, h: ~, i: !!str 5, j: .5, k: 1_000, l: NO, m: 1.5.0, n: .inf}"
    )
    (value,) = values(text)
    assert value == {
        "a": True,
        "b": "yes",
        "c": "12:30",
        "d": "2026-01-31",
        "e": 1000.0,
        "f": 511,
        "g": 16,
        "h": None,
        "i": "5",
        "j": 0.5,
        "k": 1000,
        "l": False,
        "m": "1.5.0",
        "n": float("inf"),
    }


def test_digits_that_make_no_number_stay_text():
    assert values("{a: 089, b: 0b_, c: 0x_f, d: -0x10, e: +5, f: -017, g: 0}") == [
        {"a": "089", "b": "0b_", "c": 15, "d": -16, "e": 5, "f": -15, "g": 0}
    ]


@given(st.one_of(st.text(), st.text(alphabet="a: -[]{}&*<!|>'\"\n#?,0x_.e~", max_size=60)))
def test_any_text_is_read_or_refused_as_unreadable(text):
    try:
        found = list(documents(text))
    except Unreadable:
        return
    assert all(document.line(("spec", "x", 0)) >= 1 for document in found)


def test_items_of_a_list_are_jobs_with_lines_of_their_own():
    text = (FIXTURES / "jobs" / "paddle.yaml").read_text()
    found = list(documents(text))
    assert [document.value["metadata"]["name"] for document in found] == ["paddle-collective", "paddle-servers", "paddle-elastic"]
    line = found[2].line(("spec", "elasticPolicy", "maxRestarts"))
    assert "maxRestarts" in text.splitlines()[line - 1]


def test_crds_prints_all_or_one():
    everything = values(elastic("crds", "--output", "yaml").stdout)
    assert [crd["spec"]["names"]["kind"] for crd in everything] == list(KINDS)
    (one,) = json.loads(elastic("crds", "tfjob", "-o", "json").stdout)["items"]
    assert one["metadata"]["name"] == "tfjobs.kubeflow.org"
    assert elastic("crds", "NoJob").exit_code == 2


@pytest.mark.parametrize(
    ("words", "completed"), [("elastic val", "validate"), ("elastic crds PyT", "pytorchjob"), ("elastic validate --out", "--output")]
)
def test_completion_offers_commands_kinds_and_options(words, completed):
    env = {"_ELASTIC_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert completed in elastic(env=env).stdout.lower()


@pytest.mark.foreign
def test_every_foreign_example_is_valid():
    folder = os.environ.get("ELASTIC_FOREIGN_EXAMPLES")
    if not folder:
        pytest.skip("ELASTIC_FOREIGN_EXAMPLES names no folder with examples of the Training Operator or mpi-operator v1")
    result = elastic("validate", folder)
    assert result.exit_code == 0, "\n".join(line for line in result.stdout.splitlines() if "error" in line)
    assert not result.stdout.startswith("0 jobs")


def test_several_wrong_templates_end_in_no_traceback():
    broken = {"spec": {"containers": [{"name": 1, "image": "x"}] * 100}}
    malformed = {"spec": {"containers": [{"name": "pytorch", "image": "x", "ports": [{}]}], "initContainers": [1], "volumes": 1}}
    spec = {"pytorchReplicaSpecs": {"Master": {"template": broken}, "Worker": {"template": malformed}}}
    text = json.dumps({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": spec})
    result = elastic("validate", "-", stdin=text)
    assert result.exit_code == 1
    assert "-:1: error: there are more than 50 problems, and the rest was not looked at; mend these first" in result.stdout


def test_keys_that_are_there_twice_are_told_as_far_as_there_is_room():
    (document,) = documents("{" + ", ".join(f"k{i % 200}: 1" for i in range(400)) + "}")
    assert len(document.doubled) == MOST_DOUBLED


def test_the_first_of_merged_mappings_wins_and_its_line_is_known():
    (document,) = documents("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  z: 3\n")
    assert document.value["c"] == {"x": 1, "y": 1, "z": 3}
    assert [document.line(("c", key)) for key in ("x", "y", "z")] == [1, 1, 5]


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_job_that_needs_an_etcd_is_warned_about_if_the_laptop_has_none(tmp_path, monkeypatch, is_installed):
    monkeypatch.setattr(etcd, "program", lambda: Path("/usr/bin/etcd") if is_installed else None)
    file = tmp_path / "job.yaml"
    job = BAD[BAD.index("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: second}") :]
    file.write_text(
        job.replace("image: x}", "image: x, command: [torchrun]}").replace("spec:\n", "spec:\n  elasticPolicy: {rdzvBackend: etcd}\n", 1)
    )
    said = elastic("validate", file).stdout
    words = f"{file}:5: warning: spec.elasticPolicy.rdzvBackend: asks for an etcd and rdzvHost names none"
    assert (words in said) == (not is_installed), said
    file.write_text(file.read_text().replace("rdzvBackend: etcd", "rdzvBackend: etcd, rdzvHost: etcd-0"))
    assert "asks for an etcd" not in elastic("validate", file).stdout
