"""Say why a policy cannot decide: the field, what was found, what to do. The job continues to train with its present workers."""

from elastic.api.scaling import PolicyName
from elastic_training.autoscale.deciding.signals import CARRIERS, ExternalSize, Signals

NO_PROGRESS = "no progress is known"
SILENT = "training reports no steps; send them with elastic_worker.report, or name elasticPolicy.progress"
NEED_PROGRESS = (PolicyName.THROUGHPUT, PolicyName.DEADLINE, PolicyName.COST)
NEED_NODES = (PolicyName.CAPACITY, PolicyName.COST)
OTHER_WRITER = "a HorizontalPodAutoscaler next to scalingPolicy"
ONE_WRITER = "remove one of them, or write scalingPolicy.through: hpa in place of it"


def no_progress(signals: Signals) -> str:
    return f"{NO_PROGRESS}: {signals.trouble or SILENT}"


def is_carrier(hand: ExternalSize) -> bool:
    """Return whether a HorizontalPodAutoscaler set the number, and not a user."""
    return hand.who in CARRIERS


def in_words(signals: Signals, now: float) -> str:
    """Return what is wrong, or nothing."""
    hand, policy = signals.memory.hand, signals.policy
    if hand is not None and now < hand.until and is_carrier(hand):
        return f"{OTHER_WRITER} sets the number of workers; {ONE_WRITER}"
    if policy.policy in NEED_PROGRESS and signals.trouble and not signals.reports:
        return no_progress(signals)
    if policy.policy is PolicyName.DEADLINE and signals.reports and signals.work.left is None:
        return without_samples()
    if policy.policy in NEED_NODES and not signals.sees_nodes:
        return without_nodes(signals)
    if policy.policy is PolicyName.COST and signals.working and signals.paid is None:
        return without_price(signals)
    return ""


def without_nodes(signals: Signals) -> str:
    needs = f"{signals.policy.policy.value} needs to see nodes, and an autoscaler of one namespace sees none"
    return f"scalingPolicy.policy: {needs}; run it for all namespaces, or choose another policy"


def without_samples() -> str:
    """Say that the work left is unknown. With totalSteps any report says how much is left."""
    return "scalingPolicy.totalSamples: training reports steps and no samples; report samples, too, or write totalSteps in place of it"


def without_price(signals: Signals) -> str:
    if not signals.sees_nodes:
        return without_nodes(signals)
    label = signals.policy.price_label
    return f"scalingPolicy.priceLabel: nodes of its workers have no number in the label {label}; label them with the price of an hour"
