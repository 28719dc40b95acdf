"""Check taints as users write them on the command line, their effect on a node's list, and the words of a waiting eviction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from elastic.kube import nodes
from elastic.kube.nodes import Effect, Taint, TaintError, evict_pod, parse_taint, with_taint
from elastic.kube.resources import Object

TAINTS = some.builds(Taint, key=some.sampled_from("abc"), value=some.sampled_from(["", "x"]), effect=some.sampled_from(Effect))


def as_object(taint: Taint) -> Object:
    return {"key": taint.key, "effect": str(taint.effect), **({"value": taint.value} if taint.value else {})}


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("a:NoSchedule", Taint("a")),
        ("example.com/a=b:NoExecute", Taint("example.com/a", "b", Effect.NO_EXECUTE)),
        ("a=:PreferNoSchedule", Taint("a", "", Effect.PREFER_NO_SCHEDULE)),
        ("a:NoSchedule-", Taint("a", is_removed=True)),
        ("a-", Taint("a", effect=None, is_removed=True)),
        ("a-b-", Taint("a-b", effect=None, is_removed=True)),
    ],
)
def test_a_taint_is_written_as_kubectl_has_it(text: str, taint: Taint) -> None:
    assert parse_taint(text) == taint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "'a' is not a taint; write KEY=VALUE:EFFECT or KEY:EFFECT to set one, KEY- to remove one"),
        ("a=b", "'a=b' is not a taint"),
        ("", "'' is not a taint"),
        (":NoSchedule", "':NoSchedule' is not a taint"),
        ("a:Never", "'Never' is not an effect of a taint; use one of NoSchedule, PreferNoSchedule, NoExecute"),
    ],
)
def test_an_invalid_taint_is_refused_with_how_one_is_written(text: str, words: str) -> None:
    with pytest.raises(TaintError) as refused:
        parse_taint(text)
    assert str(refused.value).startswith(words)


@given(TAINTS)
def test_a_taint_reads_as_it_is_shown(taint: Taint) -> None:
    assert parse_taint(str(taint)) == taint


@given(some.lists(TAINTS, unique_by=lambda taint: (taint.key, taint.effect)), TAINTS)
def test_a_node_has_a_taint_once_and_keeps_the_others(there: list[Taint], taint: Taint) -> None:
    before = [as_object(one) for one in there]
    after = with_taint(before, taint)
    same = [one for one in after if (one["key"], one["effect"]) == (taint.key, taint.effect)]
    assert same == [as_object(taint)]
    assert [one for one in after if one not in same] == [one for one in before if (one["key"], one["effect"]) != (taint.key, taint.effect)]
    assert with_taint(after, taint) == after
    assert taint.key not in {one["key"] for one in with_taint(after, Taint(taint.key, effect=None, is_removed=True))}


class Server:
    """A server with a pod that takes a few looks to end."""

    def __init__(self, pod: Object, *, looks: int) -> None:
        self.pods = [pod] * looks

    async def create(self, *words: object, **options: object) -> None: ...

    async def find(self, *words: object, **options: object) -> Object | None:
        return self.pods.pop() if self.pods else None


async def test_an_eviction_that_takes_long_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ends the pods of a killed node until its loss is noticed. A drain was silent for a minute."""
    pod = {"metadata": {"namespace": "n", "name": "a", "uid": "u"}, "spec": {"nodeName": "node-1"}}
    for quiet_s, lines in ((0.0, 3), (60.0, 0)):
        said = list[str]()
        monkeypatch.setattr(nodes, "LOOK_EVERY_S", 0)
        monkeypatch.setattr(nodes, "QUIET_S", quiet_s)
        await evict_pod(Server(pod, looks=3), pod, said.append)  # type: ignore[arg-type]
        assert said == ["pod n/a evicted", *["waits for pod n/a to be gone from node node-1"] * lines, "pod n/a gone"]
