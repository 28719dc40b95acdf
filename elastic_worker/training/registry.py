"""Take process groups out of torch's registry and put them back, because `destroy_process_group` shuts down all groups in it."""

import typing

import torch.distributed as dist
from torch.distributed import distributed_c10d

c10d = typing.cast(typing.Any, distributed_c10d)
NAMES = ("pg_map", "pg_names", "pg_backend_config", "pg_to_tag")


class KeptGroup:
    """A group that outlives the default group. It may change its place in the registry, and its connections stay."""

    def __init__(self, group: "dist.ProcessGroup") -> None:
        self.group = group
        self._entries = {}  # type: typing.Dict[str, typing.Any]

    def take_out(self) -> None:
        """Remove the group from the registry if it is there."""
        world, group = c10d._world, self.group
        if group not in world.pg_map:
            return
        if world.default_pg is group:
            c10d._update_default_pg(None)
            world.group_count = 0  # the next default group must have the same name as those of its peers, who may have destroyed theirs
        self._entries = {name: getattr(world, name).pop(group) for name in NAMES}
        world.pg_group_ranks.pop(group)
        for groups in world.tags_to_pg.values():
            if group in groups:
                groups.remove(group)
        c10d._unregister_process_group(self._entries["pg_names"])

    def put_in(self, first: int) -> None:
        """Add the group to the registry again. DTensor and clip_grad_norm_ look there.

        first: the rank of its first member in the present world. The others follow.
        """
        world, group = c10d._world, self.group
        for name, value in self._entries.items():
            getattr(world, name)[group] = value
        world.pg_group_ranks[group] = {first + number: number for number in range(group.size())}
        world.tags_to_pg.setdefault(self._entries["pg_to_tag"], []).append(group)
        c10d._register_process_group(self._entries["pg_names"], group)

    def be_default(self) -> None:
        """Make this the default group. No other one may exist."""
        self.put_in(0)
        c10d._update_default_pg(self.group)
