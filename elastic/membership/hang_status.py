"""Read the standstill in a job's status, and say it in the words of this moment."""

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from elastic.api.book import Hang, HangPod, HangRanks
from elastic_training.rendezvous.engine.doing_words import sentence
from elastic_training.rendezvous.engine.messages import doing
from elastic_training.rendezvous.engine.messages.bounds import MOST_SECONDS


def hang_of(raw: object) -> Hang | None:
    """Return the standstill in a status that anybody may have written; None without a readable one.

    A newer controller may add fields.
    """
    if not isinstance(raw, dict):
        return None
    ranks = [_known(HangRanks, entry, pods=[_known(HangPod, pod) for pod in _list(entry.get("pods"))]) for entry in _list(raw.get("ranks"))]
    try:
        return msgspec.convert(_known(Hang, raw, ranks=ranks), Hang)
    except msgspec.ValidationError:
        return None


def words_at(hang: Hang, now: datetime | None) -> str:
    """Return what is known about a standstill, with the times until now; without now, the words have no times."""
    if now is None or hang.since is None:
        return hang.message
    try:
        groups = tuple(_group(entry, now) for entry in hang.ranks)
        state = doing.HangState(hang.state)
    except ValueError:
        return hang.message
    nodes = {pod.name: pod.node for entry in hang.ranks for pod in entry.pods}
    found = doing.Hang(state=state, since_s=_seconds(hang.since, now), has_stepped=hang.reports_steps, groups=groups)
    return sentence(found, place_of=lambda name: f"{name} on {nodes[name]}" if nodes.get(name) else name)


def _group(entry: HangRanks, now: datetime) -> doing.RanksDoing:
    looks, for_s = (1, 0.0) if entry.since is None else (doing.STILL_LOOKS, _seconds(entry.since, now))
    activity = doing.Doing(kind=doing.DoingKind(entry.kind), looks=looks, for_s=for_s, does=entry.does, place=entry.place, code=entry.code)
    return doing.RanksDoing(
        spans=tuple(_spans(entry.ranks)),
        count=entry.count,
        members=tuple(pod.name for pod in entry.pods),
        doing=activity,
    )


def _spans(ranks: str) -> Iterator[doing.Span]:
    for part in ranks.split(","):
        first, _, last = part.partition("-")
        yield doing.Span(first=int(first), last=int(last or first))


def _seconds(since: datetime, now: datetime) -> float:
    return min(max(0.0, (now - since).total_seconds()), MOST_SECONDS)


def _known(kind: type[msgspec.Struct], raw: Mapping[str, object], **others: object) -> dict[str, object]:
    """Return the present fields of this type."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return {name: raw[name] for name in names if name in raw} | others


def _list(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
