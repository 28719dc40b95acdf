"""The controller uses every right that it is granted and asks for no other: all it ever does to an API is made to happen once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import api_server, controller_account
from rights_story import OTHER_SCHEDULER, PATIENCE_S, VOLCANO, Which, control_plane, live, live_in_gangs, prepare
from rights_used import Use, granted, used

from elastic.api.rights import roles
from elastic.kube import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(700)]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    # With the plugin the server asks for the right to hold up a job's deletion, as many clusters do.
    with api_server(tmp_path, "--enable-admission-plugins", "OwnerReferencesPermissionEnforcement") as path:
        asyncio.run(prepare(path))
        yield path


async def test_the_controller_uses_every_right_it_has_and_misses_none(kubeconfig: Path, tmp_path: Path) -> None:
    audit, account = tmp_path / "audit.jsonl", await controller_account(kubeconfig, tmp_path)

    async def until_done(which: Which) -> None:
        await until_all_are_used(audit, which)

    async with connect(kubeconfig) as kube:
        with control_plane(account, tmp_path, gang_scheduler=OTHER_SCHEDULER):
            await live(kube, until_done=until_done)
        with control_plane(account, tmp_path, gang_scheduler=VOLCANO):
            await live_in_gangs(kube, until_done=until_done)
    assert used(audit, allowed=False) == set()


async def until_all_are_used(audit: Path, which: Which) -> None:
    missing: set[Use] = set()
    try:
        async with asyncio.timeout(PATIENCE_S / 2):
            while True:
                missing = set(filter(which, granted(roles()) - used(audit)))
                if not missing:
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(
            f"granted, but never used: {sorted(missing)}; make it happen in tests/rights_story.py, or take it from elastic/api/rights.py"
        )
