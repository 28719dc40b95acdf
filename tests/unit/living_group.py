"""Groups of members whose processes live on when the world changes, and questions that tests ask about them."""

from rendezvous_group import Group, group_of

from elastic_training.rendezvous.engine.messages.in_place import Stage
from elastic_training.rendezvous.engine.views import summary


def living(count: int, *, trained: int | None = 5, **fields: object) -> Group:
    """Make a group whose members train in one world, and change worlds in process."""
    group = group_of(count, is_able=True, **fields)
    if trained is not None:
        group.train(step=trained)
    return group


def reason(group: Group) -> str:
    return summary(group.job).reason


def restarts(group: Group) -> dict[str, int]:
    return dict(summary(group.job).restarts)


def generation(group: Group) -> int:
    return group.job.membership.generation


def told(group: Group, *names: str) -> set[Stage | None]:
    """Return the stages of the changes that these members were told of; of all, if none is named."""
    changes = [group.agents[name].view.change for name in names or group.agents]
    return {change.stage if change is not None else None for change in changes}


def is_restarting(group: Group) -> bool:
    return any(agent.view.reform for agent in group.agents.values())


def newcomer(group: Group, name: str) -> None:
    """Let a newcomer start, in a world of its own, and stand by."""
    group.start(name)
    assert group.agents[name].is_provisional
    assert group.agents[name].view.provisional
    group.hello(name)
