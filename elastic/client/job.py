"""A job as `elastic.Client` gives it: its status, its logs, what its function returned, and what a user may change."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from kubernetes import watch as _watch

from elastic.api.counting import counted
from elastic.api.kinds import GROUP, VERSION, Kind
from elastic.api.names import JOB_NAME, REPLICA_INDEX
from elastic.api.template import default_container
from elastic.client import errors, page
from elastic.client.cluster import TIMEOUT_S, Cluster, speaking
from elastic.client.explanation import explained
from elastic.client.program import MARK, result_in
from elastic.client.sample import Sample
from elastic.client.summary import Summary, pod_state, rank_of, ranks, summary
from elastic.kube.lines import Lines
from elastic.kube.resources import TRAIN_JOBS

watches: Any = _watch  # its functions have no types
LOOK_EVERY_S = 0.3
WATCH_S = 30
LAST_LINES = 200
GONE_S = 60.0


class Job:
    """One job of a cluster. Each property asks the API server again. With a uid, another job of the same name is not this one."""

    def __init__(self, cluster: Cluster, kind: Kind, name: str, uid: str | None = None) -> None:
        self._cluster, self._uid = cluster, uid
        self._at = {"group": GROUP, "version": VERSION, "namespace": cluster.namespace, "plural": kind.plural}
        self.kind, self.namespace, self.name = kind, cluster.namespace, name

    def __repr__(self) -> str:
        return f"<{self.kind.title} {self.namespace}/{self.name}>"

    def _repr_html_(self) -> str:
        found = self.object
        sample = self._sample_of(found)
        return page.as_html(summary(self.kind, found), self._explained(found, sample), sample)

    @property
    def object(self) -> dict[str, Any]:
        """The job as the API server has it."""
        with speaking(f"{self.kind.title} {self.name}"):
            found: dict[str, Any] = self._cluster.jobs.get_namespaced_custom_object(**self._at, name=self.name, _request_timeout=TIMEOUT_S)
        if self._uid not in (None, found["metadata"]["uid"]):
            raise self._replaced()
        return found

    def _replaced(self) -> errors.JobFailed:
        return errors.JobFailed(f"{self.name} was deleted, and another of its name was made", name=self.name)

    @property
    def status(self) -> Summary:
        return summary(self.kind, self.object)

    @property
    def sample(self) -> Sample | None:
        """How far training is now: step, speed, loss and world, as the dashboard has heard; None if it has heard nothing."""
        return self._cluster.sample(self.object["metadata"]["uid"])

    def _sample_of(self, found: Mapping[str, Any]) -> Sample | None:
        """Return the sample for a view that shows more than it: a dashboard that is down costs the sample only."""
        try:
            return self._cluster.sample(found["metadata"]["uid"])
        except errors.Unreachable:
            return None

    def explain(self) -> str:
        """Say why the job has its size, what it waits for, and what the last change cost."""
        found = self.object
        return self._explained(found, self._sample_of(found))

    def _explained(self, found: Mapping[str, Any], sample: Sample | None) -> str:
        told, spec = summary(self.kind, dict(found)), found.get("spec") or {}
        return "\n".join(explained(told, self._pods_of(found), spec, datetime.now(UTC), progress=sample.progress if sample else ""))

    def pods(self) -> list[dict[str, Any]]:
        """Return the job's pods as the API server has them, in the order of their names."""
        return self._pods_of(self.object)

    def _pods_of(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the pods that the job owns. Any pod may have its label, and those of a job of another kind with this name do."""
        with speaking(f"the pods of {self.name}"):
            selector = f"{JOB_NAME}={self.name}"
            found = self._cluster.core.list_namespaced_pod(self.namespace, label_selector=selector, _request_timeout=TIMEOUT_S)
        pods: list[dict[str, Any]] = self._cluster.api.sanitize_for_serialization(found)["items"]
        uid = job["metadata"]["uid"]
        own = [pod for pod in pods if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or ())]
        return sorted(own, key=lambda pod: (len(pod["metadata"]["name"]), pod["metadata"]["name"]))

    def watch(self, timeout: float | None = None) -> Iterator[Summary]:
        """Yield the status now, and at each change until the job has ended."""
        return self._followed(timeout, threading.Event())

    def _followed(self, timeout: float | None, given_up: threading.Event) -> Iterator[Summary]:
        end = None if timeout is None else time.monotonic() + timeout
        last = None
        while not given_up.is_set():
            found = self.object
            for seen in itertools.chain([found], self._changes(found, end)):
                told = summary(self.kind, seen)
                if told != last:
                    yield told
                last = told
                if told.is_over:
                    return
            if end is not None and time.monotonic() >= end:
                raise errors.TimedOut(f"{self.name} is {told.state.lower()} after {timeout:g} s: {self.explain()}")

    def _changes(self, found: Mapping[str, Any], end: float | None) -> Iterator[dict[str, Any]]:
        """Yield what one watch says, which the server ends after a while."""
        seconds = WATCH_S if end is None else max(1, min(WATCH_S, int(end - time.monotonic() + 1)))
        watcher = watches.Watch()
        events = watcher.stream(
            self._cluster.jobs.list_namespaced_custom_object,
            **self._at,
            field_selector=f"metadata.name={self.name}",
            resource_version=found["metadata"]["resourceVersion"],
            timeout_seconds=seconds,
            _request_timeout=(TIMEOUT_S[0], seconds + TIMEOUT_S[1]),
        )
        with contextlib.closing(events), speaking(f"{self.kind.title} {self.name}"):
            for event in events:
                if event["type"] == "DELETED":
                    raise errors.JobFailed(f"{self.name} was deleted", name=self.name)
                if event["object"]["metadata"].get("uid") != found["metadata"]["uid"]:
                    raise self._replaced()
                yield event["object"]

    def wait(self, until: str = "over", timeout: float | None = None) -> Summary:
        """Wait until the job is `running` or `over`. A job that failed raises JobFailed with the first error of its workers."""
        if until not in ("running", "over"):
            raise ValueError(f"until is {until!r}; it may be 'running' or 'over'")
        for told in self.watch(timeout):
            if told.state == "Failed":
                raise errors.JobFailed(told.message, name=self.name)
            if told.is_over or (until == "running" and told.state == "Running"):
                return told
        raise AssertionError("watch ends with what is over")

    def result(self, timeout: float | None = None) -> Any:
        """Return what the submitted function returned on rank 0, once the job has succeeded."""
        self.wait(timeout=timeout)
        found = self.object
        pods, first = self._pods_of(found), ranks(found).get(0)
        pods.sort(key=lambda pod: pod["metadata"]["labels"].get(REPLICA_INDEX) != str(first))
        for pod in pods:
            try:
                return result_in("\n".join(deque(self._lines(pod, tail=LAST_LINES), maxlen=LAST_LINES)))
            except KeyError:
                continue
            except (ValueError, RecursionError) as error:
                raise errors.NoResult(f"the log of {pod['metadata']['name']} has {MARK!r}, but behind it no JSON: {error}") from error
        raise errors.NoResult(
            f"no log of {self.name} has a line {MARK!r}: its pods are gone, or it runs a script, which has to save what it makes"
        )

    def logs(self, *, worker: int | None = None, rank: int | None = None, tail: int | None = None) -> Iterator[str]:
        """Yield the lines that the training containers have printed: of one worker, or of all, each line with its pod."""
        found = self.object
        pods = there = self._pods_of(found)
        if worker is not None:
            pods = [pod for pod in pods if pod["metadata"]["labels"].get(REPLICA_INDEX) == str(worker)]
        if rank is not None:
            pods = [pod for pod in pods if rank_of(pod, found) == rank]
        if (worker is not None or rank is not None) and not pods:
            raise errors.NotFound(f"{self.name} has no such worker now; its pods: {', '.join(p['metadata']['name'] for p in there)}")
        for pod in pods:
            prefix = "" if len(pods) == 1 else f"{pod['metadata']['name']} | "
            for line in self._lines(pod, tail=tail):
                yield prefix + line

    def _lines(self, pod: dict[str, Any], *, tail: int | None) -> Iterator[str]:
        container = default_container(pod, self.kind)["name"]
        options: dict[str, Any] = {"tail_lines": tail} if tail is not None else {}
        if pod_state(pod) in ("Pending", "ContainerCreating", "PodInitializing"):
            return
        with speaking(f"the log of {pod['metadata']['name']}"):
            answer = self._cluster.core.read_namespaced_pod_log(
                pod["metadata"]["name"], self.namespace, container=container, _preload_content=False, _request_timeout=TIMEOUT_S, **options
            )
            lines = Lines()
            with contextlib.closing(answer):
                for piece in answer.stream():
                    for line in lines.of(piece):
                        yield from line.text.splitlines() or [""]
                for line in lines.last():
                    yield from line.text.splitlines()

    def scale(self, workers: int) -> None:
        """Change the number of workers, within the bounds of the job's spec."""
        change = self._cluster.jobs.patch_namespaced_custom_object_scale
        self._patch(change, {"spec": {"replicas": workers}}, f"scaling {self.name} to {counted(workers, 'worker')}")

    def suspend(self) -> None:
        """Stop the job and free what it uses."""
        self._suspend(is_suspended=True, doing="suspending")

    def resume(self) -> None:
        """Start the job again, from its checkpoint."""
        self._suspend(is_suspended=False, doing="resuming")

    def _suspend(self, *, is_suspended: bool, doing: str) -> None:
        change, doing = self._cluster.jobs.patch_namespaced_custom_object, f"{doing} {self.name}"
        if (owner := self._train_job()) is None:
            self._patch(change, {"spec": {"runPolicy": {"suspend": is_suspended}}}, doing)
            return
        body = {"metadata": {"uid": owner}, "spec": {"suspend": is_suspended}}
        with speaking(doing):
            change(**self._at_train_job, name=self.name, body=body, _request_timeout=TIMEOUT_S)

    def _train_job(self) -> str | None:
        """Return the uid of the TrainJob that owns this job, if one does. The job follows it, so it is changed instead."""
        if not self.kind.role:
            return None
        owners = self.object["metadata"]["ownerReferences"]
        return next(str(owner["uid"]) for owner in owners if owner.get("controller"))

    @property
    def _at_train_job(self) -> dict[str, str]:
        return {"group": TRAIN_JOBS.group, "version": TRAIN_JOBS.version, "namespace": self.namespace, "plural": TRAIN_JOBS.plural}

    def _patch(self, change: Callable[..., Any], body: dict[str, Any], doing: str) -> None:
        """Patch this job only. The server refuses the uid of another job, which may have got the name a moment ago."""
        uid = self._uid or self.object["metadata"]["uid"]
        with self._being_this_one(uid, doing):
            change(**self._at, name=self.name, body={"metadata": {"uid": uid}, **body}, _request_timeout=TIMEOUT_S)

    @contextlib.contextmanager
    def _being_this_one(self, uid: str, doing: str) -> Iterator[None]:
        """Explain a refusal whose cause is that another job has the name now."""
        try:
            with speaking(doing):
                yield
        except errors.Refused as error:
            if self.object["metadata"]["uid"] != uid:
                raise self._replaced() from error
            raise

    def delete(self, timeout: float = GONE_S) -> None:
        """Delete the job with its pods, and return when they are gone."""
        end = time.monotonic() + timeout
        uid = self.object["metadata"]["uid"]
        owner = self._train_job()
        at, of = (self._at, uid) if owner is None else (self._at_train_job, owner)
        with self._being_this_one(uid, f"deleting {self.name}"):
            self._cluster.jobs.delete_namespaced_custom_object(**at, name=self.name, body=_foreground(of), _request_timeout=TIMEOUT_S)
        while self._is_there(uid):
            if time.monotonic() > end:
                raise errors.TimedOut(f"{self.name} is not gone after {timeout:g} s")
            time.sleep(LOOK_EVERY_S)

    def _is_there(self, uid: str) -> bool:
        try:
            return bool(self.object["metadata"]["uid"] == uid)
        except (errors.NotFound, errors.JobFailed):
            return False

    def show(self, timeout: float | None = None) -> None:
        """Show a table that follows the job until it has ended: live in a notebook, a line for each change elsewhere."""
        found, given_up = self.object, threading.Event()
        self._cluster.sample(found["metadata"]["uid"])  # a dashboard that was named and does not answer is said now
        try:
            page.show(self._followed(timeout, given_up), lambda: self._sample_of(found))
        finally:
            given_up.set()


def _foreground(uid: str) -> client.V1DeleteOptions:
    return client.V1DeleteOptions(propagation_policy="Foreground", preconditions=client.V1Preconditions(uid=uid))
