"""Keep a worker's last commit in a file of its pod.

A thread writes the file and replaces it as a whole, so training does not wait for the disk. If all processes are lost, with the launcher
or at once, the next processes continue from the newest commit that any of their pods has.
"""

import os
import tempfile
import threading
import typing

NAME = "commit"


def folder(environ: typing.Mapping[str, str]) -> str:
    """Return the folder of this worker. Its name has the host, because pods of one machine may share the folder for temporary files."""
    parts = (environ.get("ELASTIC_JOB_UID") or "job", environ.get("HOROVOD_HOSTNAME") or "host", environ.get("HOROVOD_LOCAL_RANK") or "0")
    return os.path.join(environ.get("ELASTIC_COMMITS") or tempfile.gettempdir(), "elastic-commits-" + "-".join(parts))


class Commits:
    """Keeps the newest commit. `write` writes an object into an open file, and `read` reads it back."""

    def __init__(
        self,
        path: str,
        write: typing.Callable[[typing.Any, typing.BinaryIO], None],
        read: typing.Callable[[typing.BinaryIO], typing.Any],
        log: typing.Callable[[str], None],
    ) -> None:
        self._path = path
        self._write = write
        self._read = read
        self._log = log
        self._changed = threading.Condition()
        self._newest: typing.Optional[typing.Tuple[int, typing.Any]] = None
        self._is_writing = False
        self._thread: typing.Optional[threading.Thread] = None

    def keep(self, number: int, content: typing.Any) -> None:
        """Store this commit soon. It replaces a commit that is not written yet. The content must not change any more."""
        with self._changed:
            self._newest = number, content
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="elastic-commits", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, within_s: float) -> bool:
        """Wait until the newest commit is written. Return whether it was written in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._newest is None and not self._is_writing, within_s)

    def newest(self) -> typing.Tuple[int, typing.Any]:
        """Return number and content of the commit in the file, or 0 and None if no commit can be read."""
        try:
            if os.stat(self._path).st_uid != os.getuid():
                raise PermissionError("the folder is another user's")
            with open(os.path.join(self._path, NAME), "rb") as file:
                number = int(file.readline(32))
                return number, self._read(file)
        except FileNotFoundError:
            return 0, None
        except Exception as error:  # a damaged file may make the reader raise anything
            self._log("the commit in {} cannot be read: {!r}".format(self._path, error))
            return 0, None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None)
                assert self._newest is not None
                (number, content), self._newest, self._is_writing = self._newest, None, True
            try:
                self._store(number, content)
            except Exception as error:  # training continues without the commit
                self._log("commit {} could not be kept in {}: {!r}".format(number, self._path, error))
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _store(self, number: int, content: typing.Any) -> None:
        os.makedirs(self._path, mode=0o700, exist_ok=True)
        draft = os.path.join(self._path, "{}.{}".format(NAME, os.getpid()))
        with open(draft, "wb") as file:
            file.write(b"%d\n" % number)
            self._write(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, os.path.join(self._path, NAME))
