"""Say in which of three environments a program runs, and keep the environment variables of its process true in each world."""

import os
import typing

from elastic_worker import settings

PROVISIONAL = "0"
"""The generation of a provisional world."""
NOT_ITS_WORKER = "the agent does not take this process for one of its workers; it may run behind a shell script without exec"


def take_door() -> typing.Optional[str]:
    """Return the path of the agent's door, and remove it from the environment: a child of this process is not a worker."""
    return os.environ.pop(settings.WORLD, None) or None


def is_provisional() -> bool:
    """Return whether this process waits for its first world. If it trained by itself, it would be rank 0 of a world of one."""
    return os.environ.get(settings.GENERATION) == PROVISIONAL


def is_distributed() -> bool:
    """Return whether torchrun or another launcher has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def own(name: str, default: int) -> int:
    """Return a whole number of the environment."""
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default


def write(world: typing.Mapping[str, typing.Any]) -> None:
    """Write the ranks and sizes of a world into the environment, for code that reads them late."""
    names = {
        "RANK": world["rank"],
        "WORLD_SIZE": world["size"],
        "LOCAL_RANK": world.get("local_rank", 0),
        "LOCAL_WORLD_SIZE": world.get("local_size", 1),
        "GROUP_RANK": world.get("node", world["rank"]),
        "GROUP_WORLD_SIZE": world.get("nodes", world["size"]),
        "ROLE_RANK": world["rank"],
        "ROLE_WORLD_SIZE": world["size"],
        settings.GENERATION: world.get("generation", 0),
    }
    os.environ.update({name: str(int(value)) for name, value in names.items()})
