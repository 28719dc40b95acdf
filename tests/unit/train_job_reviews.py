"""Let the webhook judge TrainJobs and runtimes."""

from __future__ import annotations

from typing import Any

from train_job_builders import runtime

from elastic.api.job import Object
from elastic.api.kinds import KINDS
from elastic.api.trainer.modes import Mode
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.webhook.answers import AdmissionKind, Request, Response
from elastic_training.controller.webhook.review import answer


def request(new: Object, old: Object | None = None, **facts: Any) -> Request:
    kind = AdmissionKind("trainer.kubeflow.org", "v1alpha1", new["kind"])
    given = {"uid": "u", "name": "fit", "namespace": "team", "operation": "CREATE" if old is None else "UPDATE"} | facts
    return Request(kind=kind, object=new, old_object=old, **given)


def said(new: Object, old: Object | None = None, *, mode: Mode = Mode.INSTEAD, sight: RuntimeSight | None = None, **facts: Any) -> Response:
    known = sight if sight is not None else RuntimeSight(runtime(), is_known=True)
    return answer(request(new, old, **facts), kinds=KINDS, namespace=None, mode=mode, look_up=lambda *key: known).response


def fields(response: Response) -> dict[str, str]:
    assert response.allowed == (response.status is None)
    return {} if response.status is None else {cause.field: cause.message for cause in response.status.details.causes}
