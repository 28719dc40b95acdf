"""The HTTPS face of the host lists: `/v1/jobs/UID/hosts` for launchers, scripts and people. See docs/horovod.md for its use by hand."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web

from elastic.membership.hosts import LauncherReport, Uid
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.host_lists import LAUNCHER_REPORT_BODY, HostLists

WAIT_S = 10.0
VERSION_HEADER = "Elastic-Version"
HOSTS = "/v1/jobs/{uid}/hosts"

_encode = msgspec.json.encode
_reports = msgspec.json.Decoder(LauncherReport)

Refuse = Callable[[web.Request], Awaitable[web.Response | None]]


class HostRoutes:
    def __init__(self, *, lists: HostLists, gate: Gate, refuse_others: Refuse) -> None:
        """Serve these lists. `refuse_others` answers callers other than the control plane."""
        self._lists = lists
        self._gate = gate
        self._refuse_others = refuse_others

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get(HOSTS, self._read)
        router.add_post(HOSTS, self._report)
        router.add_post(HOSTS + "/proofs/{pod}", self._prove)

    async def _read(self, request: web.Request) -> web.Response:
        """Answer with the list: lines `HOST:SLOTS`, or JSON with reasons if the caller accepts that.

        `?after=VERSION` waits for another version; `?unproven` adds lines `# HOST POD_UID` for ready hosts in which the launcher should run
        a command, and then post the proof; `?version` adds a line `#@ VERSION` for a caller that does not see headers.
        """
        uid = request.match_info["uid"]
        if not self._is_launcher(request) and (refusal := await self._refuse_others(request)) is not None:
            return _of_launcher_only() if refusal.status == 403 else refusal
        await self._wait(uid, request.query.get("after", ""))
        if "application/json" in request.headers.get("Accept", ""):
            return self._json(uid)
        return self._lines(uid, with_unproven="unproven" in request.query, with_version="version" in request.query)

    async def _report(self, request: web.Request) -> web.Response:
        """Take a launcher's report, and answer as `_read` in JSON."""
        uid = request.match_info["uid"]
        if not self._is_launcher(request):
            return _of_launcher_only()
        length = request.content_length or LAUNCHER_REPORT_BODY + 1
        if length > LAUNCHER_REPORT_BODY:
            return _error(413, f"a launcher's report has a Content-Length of at most {LAUNCHER_REPORT_BODY} bytes")
        if (refusal := self._hold_back(uid, length)) is not None:
            return refusal
        try:
            report = _reports.decode(await request.read())
        except msgspec.MsgspecError as error:
            return _error(400, f"launcher's report: {error}")
        self._lists.report(uid, report)
        await self._wait(uid, request.query.get("after", ""))
        return self._json(uid)

    async def _prove(self, request: web.Request) -> web.Response:
        if not self._is_launcher(request):
            return _of_launcher_only()
        try:
            pod_uid = msgspec.convert(request.match_info["pod"], Uid)
        except msgspec.ValidationError as error:
            return _error(400, f"the uid of a pod: {error}")
        if (refusal := self._hold_back(request.match_info["uid"], 0)) is not None:
            return refusal
        self._lists.prove(request.match_info["uid"], pod_uid)
        return web.Response(status=204)

    def _hold_back(self, uid: str, length: int) -> web.Response | None:
        """Return a refusal before any of the body is read; None to go on."""
        if not self._lists.knows(uid):
            return _unknown()
        return None if self._lists.allows(uid, length) else _error(429, "this launcher sends too much; report again in a second")

    async def _wait(self, uid: str, version: str) -> None:
        if version:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lists.wait_other(uid, version), WAIT_S)

    def _json(self, uid: str) -> web.Response:
        found = self._lists.read(uid)
        if found is None:
            return _unknown()
        headers, status = {VERSION_HEADER: found.version}, 503 if found.error else 200
        return web.Response(status=status, body=_encode(found), content_type="application/json", headers=headers)

    def _lines(self, uid: str, *, with_unproven: bool, with_version: bool) -> web.Response:
        found = self._lists.read(uid)
        if found is None:
            return _unknown()
        lines = [f"{host.name}:{host.slots}\n" for host in found.hosts if host.listed]
        if with_unproven:
            lines += [f"# {name} {pod_uid}\n" for name, pod_uid in self._lists.unproven(uid)]
        headers = {VERSION_HEADER: found.version}
        if not lines:
            return _error(503, found.error, headers)
        return web.Response(text="".join([f"#@ {found.version}\n", *lines] if with_version else lines), headers=headers)

    def _is_launcher(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._gate.is_launcher(token.strip(), request.match_info["uid"])


def _unknown() -> web.Response:
    return _error(503, "the controller has not said yet which hosts the job has")


def _of_launcher_only() -> web.Response:
    return _error(403, "only the job's launcher may do this, with the launcher token of the job's Secret")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=_encode({"error": message}), content_type="application/json", headers=headers)
