"""Read the messages of a worker, and divide long ones for it. A message that breaks a rule raises BrokenRule."""

import json
import typing

MOST_WORDS = 300
MOST_NUMBER = 2**53
MOST_KEYS_LINE = 48 * 1024

Message = typing.Dict[str, typing.Any]


class BrokenRule(ValueError):
    """A worker's message breaks a rule. It costs the worker its connection, and nothing else."""


def parts_of(items: typing.Mapping[str, str]) -> typing.Iterator[Message]:
    """Divide these values, so that each part fits into a line."""
    part, size = {}, 0  # type: Message, int
    for key, value in items.items():
        more = len(json.dumps(key)) + len(value) + 4
        if part and size + more > MOST_KEYS_LINE:
            yield part
            part, size = {}, 0
        part[key] = value
        size += more
    if part:
        yield part


def number_of(message: Message, name: str) -> int:
    """Return this whole number of a message."""
    found = message.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MOST_NUMBER:
        raise BrokenRule("its {} is no number from 0 to 2**53".format(name))
    return found


def step_of(message: Message, name: str) -> typing.Optional[int]:
    """Return this step of a message; None if the worker has no clean state."""
    return None if message.get(name) is None else number_of(message, name)


def words_of(message: Message) -> str:
    """Return the words of a message, cut to the limit."""
    found = message.get("words", "")
    if not isinstance(found, str):
        raise BrokenRule("its words are no text")
    return found[:MOST_WORDS].encode("utf-8", "replace").decode()  # half a surrogate pair would break the connection to the server
