"""A command in a pod ends with its status and its output, or with one clear error."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable

import pytest
from aiohttp import web
from served_api import served

from elastic.cli.jobs.stacks import MISSING, NO_LIBRARY, _answer, _text
from elastic.kube.errors import KubeError
from elastic.kube.executing import ERRORS, OUTPUT, PROTOCOL, STATUS, Ended, run

SUCCESS = {"metadata": {}, "status": "Success"}
FAILED = {
    "status": "Failure",
    "reason": "NonZeroExitCode",
    "message": "command terminated with non-zero exit code",
    "details": {"causes": [{"reason": "ExitCode", "message": "120"}]},
}
NOT_STARTED = {"status": "Failure", "reason": "InternalError", "message": 'exec: "sh": executable file not found in $PATH'}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def saying(*messages: tuple[int, object], asked: list[tuple[str, list[str]]] | None = None, ends: bool = True) -> Handler:
    """Return a server that answers an exec with these messages on these channels."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if asked is not None:
            asked.append((request.path, request.query.getall("command")))
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for channel, data in messages:
            await socket.send_bytes(bytes([channel]) + (data if isinstance(data, bytes) else json.dumps(data).encode()))
        if not ends:
            await socket.receive()
        await socket.close()
        return socket

    return answer


async def ran(answer: Handler, command: Iterable[str] = ("true",), *, timeout_s: float = 30.0, most_bytes: int = 10_000) -> Ended:
    async with served(answer) as kube:
        return await run(kube, "p", list(command), namespace="n", container="c", timeout_s=timeout_s, most_bytes=most_bytes)


async def trouble(answer: Handler, **options: float) -> str:
    with pytest.raises(KubeError) as error:
        await ran(answer, **options)  # type: ignore[arg-type]
    return error.value.message


async def test_the_words_of_the_command_and_both_outputs_arrive() -> None:
    asked: list[tuple[str, list[str]]] = []
    words = ["sh", "-c", 'a "b" & c=%20 + ü\n', ""]
    answer = saying((OUTPUT, b"on"), (ERRORS, b"err"), (OUTPUT, b"e"), (9, b"?"), (STATUS, SUCCESS), asked=asked)
    assert await ran(answer, words) == Ended(0, "one", "err")
    assert asked == [("/api/v1/namespaces/n/pods/p/exec", words)]


async def test_a_status_is_told_and_a_command_that_could_not_start() -> None:
    assert await ran(saying((STATUS, FAILED))) == Ended(120, "", "")
    assert (await ran(saying((STATUS, NOT_STARTED)))).trouble == 'exec: "sh": executable file not found in $PATH'


async def test_a_caller_without_the_right_is_told_which_one_is_missing() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "code": 403, "message": "no"}, status=403)

    assert await trouble(answer) == "running a command in pod p needs the rights to get and to create pods/exec in namespace n"


async def test_a_pod_that_says_too_much_or_never_ends_or_breaks_off_is_given_up() -> None:
    assert "wrote more than 10 bytes" in await trouble(saying((OUTPUT, b"x" * 11), (STATUS, SUCCESS)), most_bytes=10)
    assert "did not end within 0.2 s" in await trouble(saying((OUTPUT, b"x"), ends=False), timeout_s=0.2)
    assert "did not say how the command in pod p ended" in await trouble(saying((OUTPUT, b"x")))
    for nonsense in ([], {"status": "Failure", "details": 3}, {"status": "Failure", "details": {"causes": [{"reason": "ExitCode"}]}}):
        assert "did not say how" in await trouble(saying((STATUS, nonsense)))


def test_answers_of_containers_are_read_with_care() -> None:
    assert _answer("p", Ended(NO_LIBRARY, "", "")).trouble == MISSING
    assert _answer("p", Ended(1, "", "Traceback\nValueError: no\n")).trouble == "ValueError: no"
    for nonsense in ("", "3", "{}", '{"workers": 3}', '{"workers": [3]}', '{"workers": [{"rank": "x"}]}', "[" * 100_000):
        assert _answer("p", Ended(0, nonsense, "")).trouble == "the answer of its container cannot be read"
    (row,) = _answer(
        "p", Ended(0, '{"workers": [{"rank": 3, "does": "sl\\u001b[2Jeeps", "pid": "x", "stacks": "a\\nb\\u0007"}]}', "")
    ).workers
    assert _text({"pod": "p", **row}) == "rank 3 (p, process None in its container) sl\\x1b[2Jeeps\na\nb\\x07"
