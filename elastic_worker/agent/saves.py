"""Tell the rendezvous server which of this agent's workers fail to save.

The server hears of the first failure, once more if it lasts, and of the next success.
"""

import typing

from elastic_worker.agent.worker_messages import Message, number_of, step_of, words_of

KIND = "save"
LASTING = 3
"""Failures in a row after which the server hears of it once more."""
MOST_TOLD = 8
"""Workers of which an agent speaks (rendezvous.engine.messages.saves)."""
MOST_FAILURES = 10**6


class LocalSaves:
    """The failing saves of one agent's workers. Pure: the caller has the sockets."""

    def __init__(self) -> None:
        self._failed = {}  # type: typing.Dict[int, Message]
        self._workers = 0
        self._has_told = False
        """The server may know of a failure, so a new connection must also hear that all saves succeed again."""

    def begin(self) -> None:
        """Forget the workers, because other processes take their places."""
        self._failed, self._has_told = {}, False

    def heard(self, local_rank: int, message: Message, *, local_size: int) -> typing.Optional[Message]:
        """Take the news of a worker about its saves. Return the message for the server if it must hear of it."""
        step, last, failures = number_of(message, "step"), step_of(message, "last"), number_of(message, "failures")
        words, known = words_of(message), self._failed.get(local_rank)
        self._workers = local_size
        if not failures:
            return self.message() if self._failed.pop(local_rank, None) is not None else None
        if known is not None and (known["failures"] >= LASTING or failures < LASTING):
            return None
        self._has_told = True
        told = {"local_rank": local_rank, "step": step, "failures": min(failures, MOST_FAILURES), "words": words}
        self._failed[local_rank] = told if last is None else dict(told, last=last)
        return self.message()

    def message(self) -> Message:
        """Return the whole state. The newest message replaces the ones before it."""
        failed = [self._failed[local_rank] for local_rank in sorted(self._failed)[:MOST_TOLD]]
        return {"t": "saves", "workers": max(1, self._workers), "failed": failed}

    def repeated(self) -> typing.List[Message]:
        """Return the messages that a new connection repeats."""
        return [self.message()] if self._has_told else []
