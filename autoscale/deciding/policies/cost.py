"""Policy `cost`: choose the size with the most work for the money.

Prices come from a label of the nodes. A size without measurements is chosen by its estimate if the estimate is better by more than the
errors of the measurements.
"""

from elastic.api.counting import counted
from elastic_training.autoscale.deciding.signals import Signals, Wish
from elastic_training.autoscale.deciding.troubles import no_progress, without_price

BETTER = 1.03
"""Factor of work for the money from which a change is worth it."""


def wish(signals: Signals, replicas: int) -> Wish:
    curve, bounds = signals.curve, signals.bounds
    if signals.paid is None:
        return Wish(replicas, without_price(signals))
    if not curve.knows(replicas):
        known = "the throughput at this size is not known yet"
        return Wish(replicas, known if signals.reports else f"{known}; {no_progress(signals)}")
    here = curve.rate(replicas).mid / signals.paid if signals.paid > 0 else float("inf")
    best, best_value = replicas, here * BETTER
    for size in (bounds.below(replicas), bounds.above(replicas + 1)):
        price = _price(signals, replicas, size) if size is not None else None
        if size is None or price is None or price <= 0:
            continue
        value = (curve.rate(size).low if curve.knows(size) else curve.rate(size).mid) / price
        if value > best_value:
            best, best_value = size, value
    if best == replicas:
        larger = bounds.above(replicas + 1)
        is_unpriced = larger is not None and _price(signals, replicas, larger) is None
        unpriced = f"; no price is known for {larger}, by the label {signals.policy.price_label} of nodes with room" if is_unpriced else ""
        return Wish(replicas, f"{counted(replicas, 'worker', 'does', 'do')} the most for the money, as far as is known{unpriced}")
    more = round((best_value / here - 1) * 100)
    return Wish(best, f"{counted(best, 'worker', 'does', 'do')} {more} % more for the money than {replicas}")


def _price(signals: Signals, replicas: int, size: int) -> float | None:
    """Return the price of an hour with this many workers: the mean of the present ones and of nodes with room for more."""
    assert signals.paid is not None
    if size <= replicas:
        return signals.paid * size / replicas
    more = size - replicas
    return signals.paid + sum(signals.prices[:more]) if len(signals.prices) >= more else None
