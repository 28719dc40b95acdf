"""What stands for an image on this machine, where none is pulled.

A folder with programs, such as a virtual environment, that the user named for it; or, for the few images that training jobs bring along,
programs of ours that do the same. Knows nothing of containers.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
FALLBACKS = ("nslookup",)
"""Programs that images usually have and hosts often lack, or have in a form that does not know the names of pods."""


class ImageError(Exception):
    """What the user named for an image cannot stand for it; the text says why."""


@dataclass(frozen=True, slots=True)
class Image:
    """What an image would bring to a container."""

    folder: Path | None = None
    """Its programs are in `bin` below; None: those of the Python that runs the cluster."""
    command: tuple[str, ...] = ()
    """What it runs where the container has no command."""


USUAL = Image()
STAND_INS: Mapping[str, Image] = {
    "kubeflow/kubectl-delivery": Image(
        command=(sys.executable, "-m", "elastic_worker.mpi.kubectl", "--install", "$(TARGET_DIR)"),
    ),
}


@dataclass(frozen=True, slots=True)
class Images:
    """Finds what stands for an image, by its whole reference first, then without tag or digest."""

    folders: Mapping[str, Path] = field(default_factory=dict)

    def find(self, reference: str) -> Image:
        for name in (reference, without_tag(reference)):
            if name in self.folders:
                return Image(folder=self.folders[name])
            if name in STAND_INS:
                return STAND_INS[name]
        return USUAL

    def environment(self, reference: str, base: Mapping[str, str]) -> dict[str, str]:
        """The base environment as it is inside the image. Another Python's programs must not mix with those of ours."""
        folder = self.find(reference).folder
        if folder is None:
            return dict(base)
        ours, *rest = base["PATH"].split(os.pathsep)
        kept = [entry for entry in rest if entry != ours]
        return {**base, "PATH": os.pathsep.join([str(folder / "bin"), *kept]), "VIRTUAL_ENV": str(folder)}


def without_tag(reference: str) -> str:
    """`registry:5000/team/train:1.2@sha256:..` is `registry:5000/team/train`."""
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def parse_images(words: Iterable[str]) -> dict[str, Path]:
    """Reads IMAGE=FOLDER, as the command line has it."""
    folders = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not (name and equals and folder):
            raise ImageError(f"{word} is given but it has to be IMAGE=FOLDER, as in example.com/train:1=/home/me/venv")
        path = Path(folder).expanduser().absolute()
        if not (path / "bin").is_dir():
            raise ImageError(f"{path}, which shall stand for image {name}, has no folder bin; name a virtual environment or one like it")
        folders[name] = path
    return folders


def write_programs(folder: Path, *, python: str = sys.executable) -> None:
    """Makes the fallback programs runnable below `folder`, whatever happened to file modes on the way here."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FALLBACKS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{python}" -IS "{PROGRAMS / name}.py" "$@"\n')
        path.chmod(0o755)
