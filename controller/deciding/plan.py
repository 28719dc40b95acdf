"""Decide what to do about one job.

`plan` derives one view of the job and its cluster, and asks the steps below in their order; the first step that returns a Plan decides.
Any plan may also delete pods on lost nodes by force. Carrying out a plan may fail half-way: the next plan starts from the cluster's state.

An eviction, at our rendezvous (`replica_plan._members`): `disruption.notices` finds the condition DisruptionTarget or the deletion of the
pod, `slot_assignment.by_count` finds a slot for its replacement, `departures.departures` adds the worker to those that leave, and
`expectation.expectation` names it to the server. The replacement is made in the same plan; after a cordon it may come earlier
(`replica_slots.wanted`). The worker's agent says goodbye at SIGTERM, mostly before the next world is formed: the server then counts one
disruption, and failures of its peers that follow from it as collateral; `failure.judge` ignores the pod's end. A node that is about to go
is the same, only that we delete the pod: once a world works without the worker, at the latest at `deadlines.Deadlines.of`.

From 3 workers to 2: `slot_assignment.by_count` picks the surplus worker, and `departures.departures` adds it to those that leave, in the
expectation, so that the server forms a world without it, and in the status. A later plan deletes its pod: once that world works, or its
grace has passed, and the server has acknowledged the expectation. If another worker is lost meanwhile, the surplus worker stays
(`departures.without_spared`), and its deletion waits while the world needs it (`departures._may_go`).

A plan is carried out in this order: expectation, objects, status, Events; deletions of workers wait for the server's acknowledgement.
"""

import dataclasses
from collections.abc import Callable, Iterable

from elastic.api.job import Job
from elastic_training.controller.deciding.actions import Plan
from elastic_training.controller.deciding.active import keep_running
from elastic_training.controller.deciding.derivation import activated, derive
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.acceptance import leave_alone
from elastic_training.controller.deciding.lifecycle.cleanup import clean_up
from elastic_training.controller.deciding.lifecycle.initializing import wait_for_initializers
from elastic_training.controller.deciding.lifecycle.lost_nodes import force_delete_on_lost_nodes
from elastic_training.controller.deciding.lifecycle.restart_accounting import with_restart_count
from elastic_training.controller.deciding.lifecycle.suspension import suspend, wait_until_forgotten
from elastic_training.controller.deciding.lifecycle.termination import deadline_exceeded, fail, finalize_failure, succeed
from elastic_training.controller.deciding.objects.pod_group import wait_for_gang
from elastic_training.controller.deciding.rendezvous.c10d_recovery import restart_on_fresh_store
from elastic_training.controller.deciding.rendezvous.worker_library import fall_back_to_c10d
from elastic_training.controller.facts.snapshot import Snapshot

Step = Callable[[JobView], Plan | None]

NOT_ACTIVE: tuple[Step, ...] = (leave_alone, clean_up, suspend, wait_until_forgotten, wait_for_gang)
"""Steps that keep a job from running, or from running yet."""
ACTIVE: tuple[Step, ...] = (
    succeed,
    finalize_failure,
    deadline_exceeded,
    wait_for_initializers,
    fall_back_to_c10d,
    restart_on_fresh_store,
    fail,
    keep_running,
)
"""Steps for a job that runs or should; the last one always decides."""


def plan(job: Job, snapshot: Snapshot) -> Plan:
    view = derive(job, snapshot)
    planned = _first(NOT_ACTIVE, view) or _first(ACTIVE, activated(view)) or Plan()
    planned = force_delete_on_lost_nodes(view, planned)
    return dataclasses.replace(planned, status=with_restart_count(planned.status))


def _first(steps: Iterable[Step], view: JobView) -> Plan | None:
    return next((planned for step in steps if (planned := step(view)) is not None), None)
