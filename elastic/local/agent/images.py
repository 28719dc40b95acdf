"""Find a replacement for an image on this machine, which pulls no images.

It is a folder with programs, such as a virtual environment, that the user named for the image. For the few images that training jobs use
themselves, it is a program of ours that does the same. This module knows nothing about containers.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
FALLBACKS = ("nslookup",)
"""Programs that images usually have. A host often lacks them, or its own do not know the names of pods."""


class ImageError(Exception):
    """The user's folder for an image cannot replace it; the text says why."""


@dataclass(frozen=True, slots=True)
class Image:
    """The replacement of an image."""

    folder: Path | None = None
    """Folder whose `bin` has the programs; None for the programs of the Python that runs the cluster."""
    command: tuple[str, ...] = ()
    """Command of a container that has no command itself."""


USUAL = Image()
STAND_INS: Mapping[str, Image] = {
    "kubeflow/kubectl-delivery": Image(
        command=(sys.executable, "-m", "elastic_worker.mpi.kubectl", "--install", "$(TARGET_DIR)"),
    ),
}


@dataclass(frozen=True, slots=True)
class Images:
    """Finds the replacement of an image, first by its whole reference, then without tag or digest."""

    folders: Mapping[str, Path] = field(default_factory=dict)

    def find(self, reference: str) -> Image:
        for name in (reference, without_tag(reference)):
            if name in self.folders:
                return Image(folder=self.folders[name])
            if name in STAND_INS:
                return STAND_INS[name]
        return USUAL

    def environment(self, reference: str, base: Mapping[str, str]) -> dict[str, str]:
        """Return the base environment as the image changes it. Another Python's programs must not mix with ours."""
        folder = self.find(reference).folder
        if folder is None:
            return dict(base)
        ours, *rest = base["PATH"].split(os.pathsep)
        kept = [entry for entry in rest if entry != ours]
        return {**base, "PATH": os.pathsep.join([str(folder / "bin"), *kept]), "VIRTUAL_ENV": str(folder)}


def without_tag(reference: str) -> str:
    """Return `registry:5000/team/train` for `registry:5000/team/train:1.2@sha256:..`."""
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def parse_images(words: Iterable[str]) -> dict[str, Path]:
    """Read arguments of the form IMAGE=FOLDER."""
    folders = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not (name and equals and folder):
            raise ImageError(f"{word} is given but it has to be IMAGE=FOLDER, as in example.com/train:1=/home/me/venv")
        path = Path(folder).expanduser().absolute()
        if not (path / "bin").is_dir():
            raise ImageError(f"{path}, which is to replace image {name}, has no folder bin; name a virtual environment or a similar folder")
        folders[name] = path
    return folders


def write_programs(folder: Path, *, python: str = sys.executable) -> None:
    """Write scripts below `folder` that run the fallback programs, whose own file modes may be lost."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FALLBACKS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{python}" -IS "{PROGRAMS / name}.py" "$@"\n')
        path.chmod(0o755)
