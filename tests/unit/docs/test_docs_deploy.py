"""The pages about installing in a cluster say what the manifests and the command do."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from installed_objects import installed_objects

from elastic.cli.installing.components import BY_NAME
from elastic.cli.installing.values import given
from elastic.kube.resources import Object

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "deploy.md").read_text()
EVERYTHING = installed_objects("standalone", [name for name in BY_NAME if name != "without-mpi"], namespace="elastic-system", image="i:1")
BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def shown() -> list[Object]:
    """Return the YAML of the page."""
    return [yaml.safe_load(text) for _, text in BLOCK.findall(PAGE)]


def workload(name: str) -> Object:
    (found,) = [item for item in EVERYTHING if item["kind"] in ("Deployment", "StatefulSet") and item["metadata"]["name"] == name]
    template: Object = found["spec"]["template"]
    return template


def test_the_policy_for_closed_namespaces_reaches_the_rendezvous_server() -> None:
    (policy,) = [item for item in shown() if item.get("kind") == "NetworkPolicy"]
    (rule,) = [rule for rule in policy["spec"]["egress"] if rule.get("ports") == [{"port": 8443, "protocol": "TCP"}]]
    (peer,) = rule["to"]
    template = workload("elastic-rendezvous")
    assert peer["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "elastic-system"}
    assert 8443 in [port["containerPort"] for port in template["spec"]["containers"][0]["ports"]]


def test_the_table_of_traffic_names_every_port_of_the_control_plane() -> None:
    table = PAGE[PAGE.index("| from | to | port |") : PAGE.index("If a namespace with training jobs is closed")]
    named = {int(word) for word in re.findall(r"\b\d{4}\b", table)}
    templates = [item["spec"]["template"] for item in EVERYTHING if item["kind"] in ("Deployment", "StatefulSet")]
    ports = [port for template in templates for port in template["spec"]["containers"][0]["ports"]]
    assert {port["containerPort"] for port in ports if port["name"] not in ("health", "peer")} <= named


def test_the_values_that_the_page_shows_are_valid() -> None:
    files = [item for item in shown() if "kind" not in item]
    assert len(files) == 4
    for values in files:
        assert list(given.problems(values)) == []


def test_the_output_that_the_page_shows_is_what_the_command_prints() -> None:
    """test_cli_install checks the lines; here their numbers."""
    plain = installed_objects("standalone", [], namespace="elastic-system", image="i:1")
    assert f"{len(plain)} objects are applied" in PAGE
