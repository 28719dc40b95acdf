"""What lies under deploy/ fits together and fits the code."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from controller.main import main
from elastic.api.kinds import KINDS
from elastic.local import certificates
from elastic.local.installation import SERVICE
from rendezvous.tokens import load_keys

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def documents(name: str) -> list[dict]:
    return [item for item in yaml.safe_load_all((DEPLOY / "base" / name).read_text()) if item]


def test_every_kind_is_applied_and_may_be_looked_after() -> None:
    listed = yaml.safe_load((DEPLOY / "crds" / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(f"{kind.crd_name}.yaml" for kind in KINDS.values())
    role = next(item for item in documents("controller-rbac.yaml") if item["kind"] == "ClusterRole")
    allowed = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert {kind.plural for kind in KINDS.values()} <= allowed
    assert {f"{kind.plural}/status" for kind in KINDS.values()} <= allowed


def test_the_controllers_flags_are_ones_it_has() -> None:
    known = {option for parameter in main.params for option in parameter.opts}
    container = next(i for i in documents("controller.yaml") if i["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert {flag.partition("=")[0] for flag in container["args"]} <= known


def test_a_flag_that_cannot_work_alone_is_refused_in_words() -> None:
    result = CliRunner().invoke(main, ["--rendezvous-url", "https://r:1"])
    assert result.exit_code == 2
    assert "--rendezvous-url needs --installation and --rendezvous-endpoint as well" in result.output
    result = CliRunner().invoke(main, ["--enable-kinds", "SparkJob"])
    assert "SparkJob is no kind of ours" in result.output


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_script_makes_an_installation_that_server_and_controller_can_use(tmp_path: Path) -> None:
    folder = tmp_path / "installation"
    subprocess.run([str(DEPLOY / "installation.sh"), str(folder)], check=True, capture_output=True)
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "server.key", "tls.crt", "tls.key"]
    assert len(load_keys(folder)) == 1
    assert certificates.covers((folder / "tls.crt").read_bytes(), (SERVICE, "localhost", "127.0.0.1"))
    again = subprocess.run([str(DEPLOY / "installation.sh"), str(folder)], capture_output=True, text=True)
    assert again.returncode == 1
    assert "nothing was changed" in again.stderr
