"""Check which nodes a pod may have if nobody has checked its template."""

from typing import Any

import pytest

from elastic.kube.placement import Candidate, fits_but_for_room

NODE = Candidate(name="n", labels={"cores": "8", "zone": "a"}, taints=(), offers={}, unschedulable=False, pods=())


def fits(**entry: Any) -> bool:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [entry]}]}
    return fits_but_for_room({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}}, NODE)


@pytest.mark.parametrize(("operator", "bound", "does"), [("Gt", "4", True), ("Gt", "8", False), ("Lt", "9", True), ("Lt", "-1", False)])
def test_numbers_are_compared(operator: str, bound: str, does: bool) -> None:
    assert fits(key="cores", operator=operator, values=[bound]) is does


@pytest.mark.parametrize(
    "entry",
    [
        {"key": "cores", "operator": "Gt", "values": ["many"]}, {"key": "cores", "operator": "Gt", "values": ["1" * 5000]},
        {"key": "cores", "operator": "Lt", "values": []}, {"key": "zone", "operator": "Gt", "values": ["1"]},
        {"key": "cores", "operator": "Gt"},
        {"key": "cores"}, {"operator": "Exists"}, {},
    ],
)  # fmt: skip
def test_an_entry_that_no_api_server_would_take_fits_nowhere(entry: dict[str, Any]) -> None:
    """One job's template with `Gt many` stopped the autoscaler of all jobs if a node had a number in that label."""
    assert not fits(**entry)
