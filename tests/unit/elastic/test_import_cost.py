"""Importing elastic is cheap and pulls in nothing heavy; each is looked at in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "kopf", "kubernetes", "aiohttp", "yaml", "click", "pydantic", "jsonschema_rs", "celpy", "cryptography", "asyncio"}


def imported_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import elastic",
        "import elastic.api",
        "from elastic.api import parse, KINDS, Job, SpecError",
        "import elastic_training.controller.webhook.judge",
        "import elastic.api; elastic.api.parse({}) if False else None",
    ],
)
def test_reading_jobs_needs_msgspec_only(statement):
    assert {name.partition(".")[0] for name in imported_by(statement)} & HEAVY == set()


def test_import_elastic_alone_loads_none_of_its_parts():
    assert {name for name in imported_by("import elastic") if name.startswith("elastic")} == {"elastic"}


@pytest.mark.parametrize("command", ["validate", "crds"])
def test_a_command_that_needs_no_cluster_loads_no_client(command):
    loaded = imported_by(f"from elastic.cli import main; import elastic.cli.{command}")
    assert {name.partition(".")[0] for name in loaded} & (HEAVY - {"yaml", "click", "asyncio"}) == set()


def test_get_loads_no_engine_and_no_laptop_cluster() -> None:
    """`elastic get` took half as much CPU time again, for modules that it did not use."""
    loaded = imported_by("from elastic.cli import main; import elastic.cli.jobs.look")
    engine = "elastic_training.rendezvous.engine"
    values = (f"{engine}.messages", f"{engine}.values", f"{engine}.words", f"{engine}.doing_words")
    assert {name for name in loaded if name.startswith(f"{engine}.") and not name.startswith(values)} == set()
    assert {"elastic.local.cluster", "elastic.local.sandbox", "elastic.membership.codec"} & loaded == set()
    assert {name.partition(".")[0] for name in loaded} & HEAVY == {"aiohttp", "asyncio", "click", "yaml"}
