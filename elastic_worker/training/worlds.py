"""Take a worker from one world to the next: leave the old group, form the new one, and bring the state level with the newest one."""

import contextlib
import json
import os
import typing

import torch

from elastic_worker.training import environment, transfer
from elastic_worker.training import state as states
from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Change, Control
from elastic_worker.training.group import Group, forming_s
from elastic_worker.training.sampler import Sampler
from elastic_worker.training.snapshot import load, states_of
from elastic_worker.training.uncaught import in_words


class Ranked(typing.Protocol):
    """The part of Run that follows the worlds."""

    rank: int
    size: int


class Progress:
    """The part of the state that belongs to the loop, as an object with a state like a model's."""

    def __init__(self, sampler: typing.Optional[Sampler]) -> None:
        self.size = None  # type: typing.Optional[int]
        """Size of the world that the state comes from."""
        self._sampler = sampler

    def state_dict(self) -> "typing.Dict[str, typing.Any]":
        """Return the state."""
        return {"size": self.size, "sampler": self._sampler and self._sampler.state_dict()}

    def load_state_dict(self, state: "typing.Mapping[str, typing.Any]") -> None:
        """Take a state."""
        self.size = state["size"]
        if self._sampler is not None and state["sampler"] is not None:
            self._sampler.load_state_dict(state["sampler"])


class Worlds:
    """The worlds of one worker, one after the other."""

    def __init__(
        self,
        run: Ranked,
        group: Group,
        *,
        sampler: typing.Optional[Sampler],
        extra: "typing.Mapping[str, typing.Any]",
    ) -> None:
        self.rules = []  # type: typing.List[typing.Callable[[int, int], typing.Any]]
        self.is_writing = False
        """Whether an optimizer step has begun since the last commit: the state may be half of one step and half of another."""
        self.is_unit = False
        """Whether the workers of one agent hold different parts of one state. Then all of an agent's workers start again together."""
        self._has_state = False
        """Whether this worker has trained, was restored or was levelled. A fresh worker's random weights are nobody's state."""
        self._was_level = False
        """Whether this worker has been in a world. A state from a save may differ from that of peers who made the step again."""
        self._run = run
        self._group = group
        self._progress = Progress(sampler)
        self.objects = {**group.replica.states, "extra": dict(extra), "run": self._progress}
        """The objects whose states are the state of the training."""
        self._has_news = False

    def note_step(self) -> None:
        """Tell the agent of the first step of a world."""
        if self._has_news:
            self._has_news = False
            self._control.send("stepped", round=self._control.entered, step=self._control.step)

    def begin(self, control: Control, connections: Connections, *, step: typing.Optional[int]) -> typing.Optional[str]:
        """Stand by and enter the first world; return the reason if this job does not change worlds in process.

        step: the step of the save from which the state was restored.
        """
        self._control, self._connections = control, connections
        control.meets_peers = self._group.replica.meets_peers
        self._has_state, control.step = step is not None, step or 0
        states.take_apart(states_of(self.objects))  # raises now, and not at the first loss, if the state cannot travel
        self._group.rehearse()
        control.start(
            pid=os.getpid(),
            local_rank=environment.own("LOCAL_RANK", 0),
            torch=str(torch.__version__),
            step=self.step,
            **({"unit": True} if self.is_unit else {}),
        )
        return self._next()

    def change(self) -> None:
        """Leave the present world, and enter the next one."""
        self._next()

    # --- from one world to the next

    @property
    def step(self) -> typing.Optional[int]:
        """Return the committed step of this worker's state, or None while it has no whole state."""
        return self._control.step if self._has_state and not self.is_writing else None

    def _next(self) -> typing.Optional[str]:
        after = self._control.place
        is_out = self._control.entered < 0
        while True:
            change = self._control.next_change(after)
            if change is None:
                return self._control.plain
            after = change.place
            if change.phase == "run" and not is_out:
                return None  # the change is called off, and the present world goes on
            is_out = is_out or change.phase in ("abort", "form")
            if change.phase == "abort":
                self._group.leave()
            # After a stop, the group stays until the next one is formed: peers may still read what this worker has sent.
            if change.phase in ("stop", "abort"):
                self._control.at_boundary(change.round, self.step)
            elif change.phase == "form" and self._form(change):
                return None

    def _form(self, change: Change) -> bool:
        """Return whether the world of this change stands and trains."""
        world, control = change.fields, self._control
        rank, size = int(world["rank"]), int(world["size"])
        try:
            control.enter(change.round, forming_s(size))
            self._connections.end()  # all have left: each member is at the boundary
            self._group.leave()
            is_donor = self._is_donor(world)
            with self._given(world, change.round, is_donor=is_donor):
                self._group.form(control, self._connections, round=change.round, rank=rank, size=size)
                if not is_donor and not (self._was_level and self.step == world["step"] and (self.is_unit or int(world["step"]))):
                    self._pull(world, change.round)
                with control.news:
                    control.step = int(world["step"])
                self._has_state = self._was_level = True
                self._group.replica.wrap(is_level=True)
                control.formed(change.round)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            self._group.leave()
            control.unformed(change.round, in_words(error))
            return False
        environment.write(world)
        self._run.rank, self._run.size = rank, size
        self._has_news = True
        old, self._progress.size = self._progress.size, size
        if old is not None and old != size:
            for rule in self.rules:
                rule(old, size)
        return True

    def _is_donor(self, world: "typing.Mapping[str, typing.Any]") -> bool:
        """Return whether this worker has the state with which the world begins.

        `donors` names all workers of some members, and one of them may be at another step. At step 0, training begins with the weights
        of the first donor alone, because they may be random. A donor's process may have been lost since it was chosen: the process in its
        place has no state, so it gives none of a later step. In a unit each one gives its own part.
        """
        rank, donors, step = int(world["rank"]), [int(donor) for donor in world["donors"]], int(world["step"])
        if not step and not self.is_unit:
            return rank == donors[0] and not self.is_writing
        is_fresh = not self._has_state and not self.is_writing
        return rank in donors and (self.step == step or (is_fresh and self.is_unit and not step))

    @contextlib.contextmanager
    def _given(self, world: "typing.Mapping[str, typing.Any]", round: int, *, is_donor: bool) -> "typing.Iterator[None]":
        """Give the state to workers that lack it meanwhile, if this worker is a donor."""
        rank, size, local_size = int(world["rank"]), int(world["size"]), int(world.get("local_size", 1))
        if not is_donor:
            if local_size > 1 and self.step != world["step"]:
                self._control.put(round, _place(rank), b"null")  # a peer that takes this worker for a donor asks the next one at once
            yield
            return
        if len(world["donors"]) >= size and local_size == 1 and (self.is_unit or int(world["step"])):
            yield
            return
        parts = transfer.Parts.of(states_of(self.objects), int(world["step"]))
        host = str(world["address"])
        with contextlib.closing(
            transfer.Donor(parts, host=host, round=round, rank=rank, size=size, secret=bytes.fromhex(world["secret"]))
        ) as donor:
            self._control.put(round, _place(rank), json.dumps([host, donor.port]).encode())
            yield

    def _pull(self, world: "typing.Mapping[str, typing.Any]", round: int) -> None:
        """Get the state of a donor. A worker with a whole state of its own keeps that until the new one is complete."""
        control, rank = self._control, int(world["rank"])
        donor, host, port = self._donor_of(world, round)

        def tell(size: int) -> None:
            control.extend(round, transfer.STALL_S + transfer.TELL_EVERY_S)
            control.send("receives", round=round, bytes=size)

        is_in_place = self.step is None
        self._has_state = self._has_state and not is_in_place
        state = transfer.receive(
            (host, port),
            states_of(self.objects),
            round=round,
            donor=donor,
            rank=rank,
            step=int(world["step"]),
            secret=bytes.fromhex(world["secret"]),
            connections=self._connections,
            is_in_place=is_in_place,
            tell=tell,
        )
        self._has_state = False  # if loading fails, the objects are half of one state and half of another
        model = self.objects["model"].state_dict().values()
        # The model's tensors hold the new values already, unless some are on a GPU or are no tensors.
        has_model = is_in_place and all(isinstance(one, torch.Tensor) and states.is_plain(one) for one in model)
        strange = load({name: one for name, one in self.objects.items() if name != "model" or not has_model}, state)
        if set(strange) - {"model"}:
            raise states.BadState("only one of donor and receiver has {}".format(", ".join(strange))[:300])
        self.is_writing = False

    def _donor_of(self, world: "typing.Mapping[str, typing.Any]", round: int) -> "typing.Tuple[int, str, int]":
        """Return the rank and address of a donor that has the state: one with this local rank if possible, and not the same for all."""
        rank, local_size = int(world["rank"]), max(1, int(world.get("local_size", 1)))
        donors = [int(donor) for donor in world["donors"] if int(donor) != rank]
        donors = donors if self.is_unit or int(world["step"]) else donors[:1]
        near = [donor for donor in donors if donor % local_size == rank % local_size]
        far = [] if self.is_unit else [donor for donor in donors if donor not in near]
        for group in (near, far):
            for donor in group[rank % max(1, len(group)) :] + group[: rank % max(1, len(group))]:
                found = json.loads(self._control.get(round, [_place(donor)], forming_s(int(world["size"])))[0])
                if found is not None:
                    return donor, str(found[0]), int(found[1])
        raise transfer.TransferError("none of {} donors has the state of step {}".format(len(donors), world["step"]))


def _place(rank: int) -> str:
    """Return the key under which a donor says where it listens."""
    return "state/{}".format(rank)
