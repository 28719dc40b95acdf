"""Assign a node's GPUs: each container gets GPUs that no other container on the node has. Pure bookkeeping of numbers."""

from collections.abc import Iterable, Mapping

from elastic.api.words import GPU
from elastic.kube import quantity
from elastic.local.agent.environment import ConfigError, Object


def asked(container: Object) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return int(quantity.parse(limits.get(GPU, 0)))


class Devices:
    """The GPUs of a node, by their numbers on this machine. `held` has the GPUs that an earlier agent assigned."""

    def __init__(self, numbers: Iterable[int], held: Mapping[str, Mapping[str, list[int]]]) -> None:
        self._numbers = tuple(numbers)
        self._held = {pod: {name: tuple(of) for name, of in containers.items()} for pod, containers in held.items()}

    @property
    def any(self) -> bool:
        return bool(self._numbers)

    def give(self, pod: str, container: Object) -> tuple[int, ...]:
        """Return the GPUs of a container. A container that asks again gets the same GPUs."""
        count = asked(container)
        name = container["name"]
        mine = self._held.setdefault(pod, {})
        if name not in mine:
            taken = {number for containers in self._held.values() for numbers in containers.values() for number in numbers}
            free = [number for number in self._numbers if number not in taken]
            if len(free) < count:
                raise ConfigError(f"{count} GPUs asked for, and {len(free)} of the node's {len(self._numbers)} are free")
            mine[name] = tuple(free[:count])
        return mine[name]

    def take_back(self, pod: str) -> None:
        self._held.pop(pod, None)

    def of(self, pod: str) -> dict[str, list[int]]:
        return {name: list(numbers) for name, numbers in self._held.get(pod, {}).items()}
