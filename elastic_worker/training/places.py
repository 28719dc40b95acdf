"""Stores files of saves in a folder or under an fsspec URL, for example `s3://bucket/run`.

A marker is a small file that appears as a whole or not at all. In a folder a rename does that, in an object store the upload.
"""

import contextlib
import importlib
import os
import typing

MOST_MARKER = 64 * 1024
PART = ".part"
"""Ending of a marker that is not complete."""


class Place(typing.Protocol):
    """The storage of saves. All names are plain file names."""

    def names(self) -> "typing.List[str]":
        """Return the names of all files; an empty list if nothing was saved yet."""

    def create(self, name: str) -> typing.Any:
        """Open a new file for writing."""

    def finish(self, file: typing.Any) -> None:
        """Close a file. Afterwards its content is in permanent storage."""

    def mark(self, name: str, content: bytes) -> None:
        """Write a marker."""

    def open(self, name: str) -> typing.Any:
        """Open a file for reading."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""


def place_of(target: "typing.Union[str, os.PathLike[str]]") -> Place:
    """Return the place of a path or URL. Nothing is read or written yet."""
    text = os.fspath(target)
    return Remote(text) if "://" in text else Folder(text)


class Folder:
    """A folder of a local or shared filesystem."""

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> "typing.List[str]":
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def create(self, name: str) -> typing.Any:
        os.makedirs(self._path, exist_ok=True)
        return open(self._at(name), "wb", buffering=0)

    def finish(self, file: typing.Any) -> None:
        os.fsync(file.fileno())
        file.close()

    def mark(self, name: str, content: bytes) -> None:
        temporary = name + PART
        try:
            with open(self._at(temporary), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(self._at(temporary), self._at(name))
        except OSError:
            self.remove(temporary)
            raise
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)  # without it a crash of the node can lose the rename
        finally:
            os.close(folder)

    def open(self, name: str) -> typing.Any:
        return open(self._at(name), "rb")

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._at(name))

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)


class Remote:
    """A folder of any filesystem that fsspec knows."""

    def __init__(self, url: str) -> None:
        try:
            core = importlib.import_module("fsspec.core")
        except ImportError as error:
            raise ImportError(f"Saves to {url} need the package fsspec. Install it, or save to a folder.") from error
        self._fs, self._path = core.url_to_fs(url)

    def names(self) -> "typing.List[str]":
        self._fs.invalidate_cache()
        try:
            return [entry.rsplit("/", 1)[-1] for entry in self._fs.ls(self._path, detail=False)]
        except FileNotFoundError:
            return []

    def create(self, name: str) -> typing.Any:
        self._fs.makedirs(self._path, exist_ok=True)
        return self._fs.open(self._at(name), "wb")

    def finish(self, file: typing.Any) -> None:
        file.close()

    def mark(self, name: str, content: bytes) -> None:
        self._fs.pipe_file(self._at(name), content)

    def open(self, name: str) -> typing.Any:
        return self._fs.open(self._at(name), "rb")

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"
