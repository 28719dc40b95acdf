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


def test_get_loads_no_part_of_the_laptop_cluster_and_no_engine() -> None:
    """`elastic get` took twice its present CPU time, most of it for modules that it did not use."""
    loaded = imported_by("from elastic.cli import main; import elastic.cli.jobs.look")
    local = {name for name in loaded if name.startswith("elastic.local")}
    assert local == {"elastic.local", "elastic.local.files"}
    engine = {name.removeprefix("elastic_training.rendezvous.engine") for name in loaded if name.startswith("elastic_training")}
    assert {name for name in engine if not name.startswith((".messages", ".values", ".words"))} == {
        "elastic_training",
        "elastic_training.rendezvous",
        "",
        ".doing_words",
    }
    assert {name.partition(".")[0] for name in loaded} & HEAVY == {"aiohttp", "asyncio", "click", "yaml"}
