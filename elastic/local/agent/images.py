"""Find a replacement for an image on this machine, because the laptop cluster pulls no images.

The replacement is a folder with programs, such as a virtual environment, that the user maps to the image. For a few images that the
controller puts into pods, our own programs do the same work. This module knows nothing about containers.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
FALLBACKS = ("nslookup",)
"""Programs that images usually have. The host often lacks them, or the host's programs do not know the names of pods."""


class ImageError(Exception):
    """The user's folder cannot replace the image. The text says why."""


@dataclass(frozen=True, slots=True)
class Image:
    """The replacement of an image."""

    folder: Path | None = None
    """Folder with the programs in its `bin`. None if pods use the programs of the Python that runs the cluster."""
    command: tuple[str, ...] = ()
    """Command for a container whose spec has no command."""


USUAL = Image()
STAND_INS: Mapping[str, Image] = {
    "kubeflow/kubectl-delivery": Image(
        command=(sys.executable, "-m", "elastic_worker.mpi.kubectl", "--install", "$(TARGET_DIR)"),
    ),
}


@dataclass(frozen=True, slots=True)
class Images:
    """Finds the replacement of an image by its full reference, or else by the reference without tag and digest."""

    folders: Mapping[str, Path] = field(default_factory=dict)

    def find(self, reference: str) -> Image:
        for name in (reference, without_tag(reference)):
            if name in self.folders:
                return Image(folder=self.folders[name])
            if name in STAND_INS:
                return STAND_INS[name]
        return USUAL

    def environment(self, reference: str, base: Mapping[str, str]) -> dict[str, str]:
        """Return the base environment with the image's folder on PATH.

        The folder replaces our own programs on PATH, so that the programs of two Pythons do not mix.
        """
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
            raise ImageError(f"{word} is not of the form IMAGE=FOLDER; write for example example.com/train:1=/home/me/venv")
        path = Path(folder).expanduser().absolute()
        if not (path / "bin").is_dir():
            raise ImageError(f"folder {path} for image {name} has no folder bin; name a virtual environment or another folder with bin")
        folders[name] = path
    return folders


def write_programs(folder: Path, *, python: str = sys.executable) -> None:
    """Write executable scripts into `folder` that run the fallback programs. The programs' own files may not be executable."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FALLBACKS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{python}" -IS "{PROGRAMS / name}.py" "$@"\n')
        path.chmod(0o755)
