"""Translate what an agent says about its workers into the record of a member, and changes in process back. Pure."""

import dataclasses
import typing

from elastic_worker._engine.messages.bounds import MAX_ERROR
from elastic_worker._engine.messages.in_place import Change, Stage
from elastic_worker.agent.first_failure import tells_of_peer
from elastic_worker.etcd.change_records import FORMED, HOLDS, READY, UNFORMED, Answer, Left, Part
from elastic_worker.etcd.records import Failed, clipped

MOVING = (Stage.HOLD, Stage.STOP, Stage.ABORT, Stage.FORM)
"""Stages in which a member may be on its way from one world to the next."""

Message = typing.Dict[str, typing.Any]


def as_message(change: typing.Optional[Change]) -> typing.Optional[Message]:
    """Return the change in the form of the server's messages."""
    if change is None:
        return None
    message = {"phase": change.stage.value, "round": change.round, "donors": change.donors, "why": change.why}  # type: Message
    if change.step is not None:
        message["step"] = change.step
    return message


def answered(part: Part, message: Message) -> Part:
    """Return the part of a member after its agent said this about the workers. Messages that the record has no place for change nothing."""
    kind, round = message["t"], int(message.get("round", 0))
    if kind == "able":
        return dataclasses.replace(part, workers=message["workers"], generation=message["generation"], step=message.get("step"))
    if kind == "unable":
        left = Left(message.get("rank"), clipped(str(message.get("error", "")))) if message.get("early") else None
        return dataclasses.replace(part, workers=0, left=part.left or left)
    if kind == "complains":
        return dataclasses.replace(part, alarm=round)
    if kind == "receives":
        return dataclasses.replace(part, received=part.received + 1)
    if kind in (HOLDS, FORMED, UNFORMED):
        return dataclasses.replace(part, answer=Answer(kind, round, message.get("step"), clipped(str(message.get("words", "")))))
    return part


def failed(generation: int, fields: Message) -> Failed:
    """Return the record of the end of a worker in this world, as the agent reports it."""
    error = str(fields.get("error", ""))
    flags = {name: bool(fields.get(name)) for name in ("out_of_memory", "replaced", "by_library")}
    follows = tells_of_peer(error)
    return Failed(generation, fields.get("status"), follows=follows, rank=fields.get("rank"), error=error[:MAX_ERROR], **flags)


def at_barrier(part: Part, *, round: int, step: typing.Optional[int]) -> Part:
    """Return the part of a member whose living processes wait at the barrier."""
    return dataclasses.replace(part, answer=Answer(READY, round, step))


def moved(part: Part, *, generation: int) -> Part:
    """Return the part of a member that has entered this world in process."""
    return dataclasses.replace(part, generation=generation, is_outside=False, alarm=0, received=0, left=None)
