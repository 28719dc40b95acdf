"""Tell the agent whether the saves of this worker fail, so that somebody hears of it who does not read its log."""

import typing

from elastic_worker.training.uncaught import LONGEST_WORDS, in_words


class SaveNews:
    """The newest saves of one worker: how many have failed in a row, and why. Any thread may call it; saves run one after another."""

    def __init__(self) -> None:
        """Begin without news. Nobody hears of saves until `listener` is set."""
        self.listener = None  # type: typing.Optional[typing.Callable[..., typing.Any]]
        """Called with the fields of each news: step, failures, words and last."""
        self.last = None  # type: typing.Optional[int]
        """The step of the last save that is known to be complete."""
        self._failures = 0
        self._has_told = False

    def failed(self, step: int, error: BaseException, newest: typing.Optional[int] = None) -> None:
        """Note a save that failed. newest: the step of the newest complete save in storage, if it is known."""
        self._failures += 1
        self.last = self.last if newest is None else newest
        self._tell(step, reason(error))

    def succeeded(self, step: int) -> None:
        """Note a complete save."""
        is_news = self._failures or not self._has_told
        self._failures, self.last = 0, step
        if is_news:
            self._tell(step, "")

    def _tell(self, step: int, words: str) -> None:
        if self.listener is not None:
            self._has_told = True
            self.listener(step=step, failures=self._failures, words=words, last=self.last)


def reason(error: BaseException) -> str:
    """Return why a save failed: the words of the system if it has any."""
    words = error.strerror if isinstance(error, OSError) else None
    return " ".join(words.split())[:LONGEST_WORDS] if words else in_words(error)
