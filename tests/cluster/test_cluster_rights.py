"""The controller's rights suffice on a real API server that also guards owners, and each one that no request shows is one it needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from control_plane import controller_account
from real_servers import ControlPlane
from rights_story import OTHER_SCHEDULER, PATIENCE_S, VOLCANO, Which, begin, control_plane, jobs, live, live_in_gangs, prepare
from rights_used import ACCOUNT, Use, granted

from elastic.api.kinds import KINDS
from elastic.api.rights import CONTROLLER, MPI, roles
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.resources import CLUSTER_ROLES, EVENTS

pytestmark = pytest.mark.timeout(900)
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata", "users": [ACCOUNT]}]}


def is_asked_inside(use: Use) -> bool:
    """Return whether admission asks for this right. A real server's audit log does not show that."""
    return use[2].endswith("/finalizers") or use[2] == "pods/exec"


@pytest.fixture
def plane(tmp_path: Path, real_assets: Path) -> Iterator[ControlPlane]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={tmp_path / 'audit.log'}")
    guarded = ("--enable-admission-plugins=OwnerReferencesPermissionEnforcement",)
    with ControlPlane(real_assets, tmp_path, api_flags=(*flags, *guarded)) as made:
        asyncio.run(prepare(made.kubeconfig))
        yield made


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(plane.kubeconfig) as client:
        yield client


def told(audit: Path, *, allowed: bool) -> set[Use]:
    found = set()
    for event in map(json.loads, audit.read_text().splitlines()):
        target = event.get("objectRef") or {}
        decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
        if target.get("resource") and decision == ("allow" if allowed else "forbid"):
            resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
            found.add((event["verb"], target.get("apiGroup", ""), resource))
    return found


async def test_the_rights_suffice_and_those_that_requests_show_are_all_used(plane: ControlPlane, admin: Kube, tmp_path: Path) -> None:
    audit, account = tmp_path / "audit.log", await controller_account(plane.kubeconfig, tmp_path)

    async def until_done(which: Which) -> None:
        missing: set[Use] = set()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    missing = {use for use in granted(roles()) - told(audit, allowed=True) if which(use) and not is_asked_inside(use)}
                    if not missing:
                        return
                    await asyncio.sleep(0.5)
        except TimeoutError:
            pytest.fail(f"granted, but never used: {sorted(missing)}")

    with control_plane(account, tmp_path, gang_scheduler=OTHER_SCHEDULER):
        await live(admin, until_done=until_done)
    with control_plane(account, tmp_path, gang_scheduler=VOLCANO):
        await live_in_gangs(admin, until_done=until_done)
    assert told(audit, allowed=False) == set()


@pytest.mark.parametrize(
    ("lacking", "refused"),
    [("finalizers", "cannot set blockOwnerDeletion"), ("pods/exec", "attempting to grant RBAC permissions not currently held")],
)
async def test_without_a_right_that_no_request_shows_an_mpijob_does_not_begin_and_an_event_says_why(
    plane: ControlPlane, admin: Kube, tmp_path: Path, lacking: str, refused: str
) -> None:
    account = await controller_account(plane.kubeconfig, tmp_path)
    name = f"{CONTROLLER}-mpi"
    role = await admin.get(CLUSTER_ROLES, name)
    rules = [rule for rule in role["rules"] if not any(resource.endswith(lacking) for resource in rule["resources"])]
    assert len(rules) == len(role["rules"]) - 1
    await admin.patch(CLUSTER_ROLES, name, {"rules": rules})
    with control_plane(account, tmp_path, gang_scheduler=OTHER_SCHEDULER):
        await begin(admin, [job for job in jobs("a") if job["kind"] == MPI])
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if any(refused in event["message"] for event in (await admin.list(EVENTS, namespace="default")).items):
                    return
                await asyncio.sleep(0.2)


def test_the_rights_that_a_real_servers_audit_does_not_show_are_these_and_no_more() -> None:
    assert {use[2] for use in granted(roles()) if is_asked_inside(use)} == {
        "pods/exec",
        *(f"{kind.plural}/finalizers" for kind in KINDS.values()),
    }
