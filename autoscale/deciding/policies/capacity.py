"""Policy `capacity`: use all free room up to the maximum. The guard releases it when other pods need it."""

from elastic_training.autoscale.deciding.signals import Signals, Wish
from elastic_training.autoscale.deciding.troubles import without_nodes


def wish(signals: Signals, replicas: int) -> Wish:
    if signals.room is None:
        return Wish(replicas, without_nodes(signals))
    count = signals.bounds.largest(replicas + signals.room)
    if count > replicas:
        return Wish(count, f"there is room for {signals.room} more")
    if replicas >= signals.bounds.most:
        return Wish(replicas, f"{replicas} is the most that the job may have")
    return Wish(replicas, "there is no room for more")
