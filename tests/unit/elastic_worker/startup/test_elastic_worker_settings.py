"""Check the settings that a container needs, and the one message if they are missing."""

import subprocess
import sys

import pytest

from elastic_worker import settings
from elastic_worker.startup import check

ENVIRONMENT = {"ELASTIC_TOKEN": "t", "ELASTIC_CA": "c", "ELASTIC_MEMBER": "train-worker-0"}


def read(endpoint: str = "rendezvous:8443", job: str = "uid", **changes: str) -> settings.Settings:
    return settings.read({**ENVIRONMENT, **changes}, endpoint=endpoint, job=job, local_address=None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ELASTIC_TOKEN": "", "ELASTIC_CA": ""}, "needs ELASTIC_TOKEN, ELASTIC_CA in the environment"),
        ({"endpoint": "rendezvous"}, "endpoint is 'rendezvous'; expected HOST:PORT"),
        ({"endpoint": ":8443"}, "endpoint is ':8443'; expected HOST:PORT"),
        ({"job": ""}, "the rendezvous id is empty; it must be the job's uid"),
    ],
)
def test_a_missing_setting_is_one_clear_error(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(settings.SettingsError, match=words):
        read(**arguments)


def test_addresses_of_both_families_are_understood() -> None:
    assert (read("[fd00::1]:8443").host, read("[fd00::1]:8443").port) == ("fd00::1", 8443)
    assert read(ELASTIC_POD_IP="10.0.0.7").address == "10.0.0.7"
    assert read().path == "/v1/jobs/uid/members/train-worker-0"


def test_secrets_are_not_shown() -> None:
    assert "token" not in repr(read())


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.6.0+cpu", (2, 6)), ("2.13.0a0+git1", (2, 13)), ("3", (3,)), ("2.6rc1", (2, 6)), ("unknown", ())]
)
def test_versions_are_read_as_far_as_they_go(version: str, numbers: tuple[int, ...]) -> None:
    assert check.numbers(version) == numbers


def test_asking_for_the_handler_is_what_imports_torch_and_nothing_before() -> None:
    modules = ", ".join(
        f"elastic_worker.{name}" for name in ("torchrun", "report", "agent.presence", "startup.deliver", "agent.workers", "settings")
    )
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
