"""Check that log messages are constants, so that lines can be found and counted. The facts stand in fields next to them."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_builders import NOW

from elastic.kube.errors import KubeError
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.deciding.actions import normal

ROOT = Path(__file__).resolve().parents[3]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
FOLDERS = ["controller", "rendezvous", "elastic/kube"]


def logged(source: str) -> Iterator[tuple[int, list[ast.expr]]]:
    """Yield the line and the arguments of each call on `log`. A level among the arguments is left out."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr="log"), args=[_, *arguments]):
                yield node.lineno, arguments
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=word), args=arguments) if word in LEVELS:
                yield node.lineno, arguments


def is_constant(arguments: list[ast.expr]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and "%" not in str(arguments[0].value)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_message_of_the_control_planes_log_is_a_constant(folder: str) -> None:
    calls = [(path, line, arguments) for path in (ROOT / folder).rglob("*.py") for line, arguments in logged(path.read_text())]
    assert calls
    assert [f"{path.relative_to(ROOT)}:{line}" for path, line, arguments in calls if not is_constant(arguments)] == []


@pytest.mark.parametrize(
    "line", ['log.info("pod %s", name)', 'log.warning(f"pod {name}")', 'log.log(level, "%s", name)', "log.error(text)"]
)
def test_a_call_that_puts_words_into_a_message_is_found(line: str) -> None:
    assert [is_constant(arguments) for _, arguments in logged(line)] == [False]


class Refusing:
    async def create(self, *_: object, **__: object) -> None:
        raise KubeError(code=403, reason="Forbidden", message="not here")


async def test_an_event_that_was_not_written_is_logged_with_its_job(caplog: pytest.LogCaptureFixture) -> None:
    job = {"kind": "PyTorchJob", "metadata": {"name": "train", "namespace": "team", "uid": "u"}}
    with caplog.at_level(logging.WARNING, logger="elastic_training.controller.acting.event_recorder"):
        await EventRecorder(Refusing()).tell(job, [normal("PyTorchJobSucceeded", "done")], now=NOW)  # type: ignore[arg-type]
    (line,) = (record.__dict__ for record in caplog.records)
    assert {field: line[field] for field in ("kind", "namespace", "job", "uid", "reason")} == {
        "kind": "PyTorchJob",
        "namespace": "team",
        "job": "train",
        "uid": "u",
        "reason": "PyTorchJobSucceeded",
    }
