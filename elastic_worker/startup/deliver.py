"""Copy this package, with the metadata by which torchrun finds it, into a folder.

An init container runs `python3 -m elastic_worker.startup.deliver DEST`; the wrapper around the command appends DEST to PYTHONPATH.
"""

import os
import shutil
import sys
import typing

from elastic_worker import __version__

DISTRIBUTION = "elastic-worker-delivered"
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: {}\nSummary: the rendezvous backend elastic, delivered into this container\n"
ENTRY_POINTS = """\
[torchrun.handlers]
elastic = elastic_worker.torchrun:register
elastic-etcd = elastic_worker.torchrun:register_etcd
[lightning.pytorch.callbacks_factory]
elastic = elastic_worker.integrations.lightning:callbacks
[pytorch_lightning.callbacks_factory]
elastic = elastic_worker.integrations.lightning:callbacks
"""
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def deliver(destination: str) -> None:
    """Fill the folder. Files of an earlier attempt are replaced."""
    package = os.path.join(destination, "elastic_worker")
    draft = "{}.{}.draft".format(package, os.getpid())
    os.makedirs(destination, exist_ok=True)
    shutil.copytree(PACKAGE, draft, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.rmtree(package, ignore_errors=True)
    os.rename(draft, package)
    _install(os.path.join(package, "horovod", "horovodrun"), os.path.join(destination, "bin"))
    information = os.path.join(destination, "{}-{}.dist-info".format(DISTRIBUTION.replace("-", "_"), __version__))
    os.makedirs(information, exist_ok=True)
    _write(os.path.join(information, "METADATA"), METADATA.format(DISTRIBUTION, __version__))
    _write(os.path.join(information, "entry_points.txt"), ENTRY_POINTS)


def _install(program: str, folder: str) -> None:
    """Copy a program. A wheel may hold it without its right to be run."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, os.path.basename(program))
    shutil.copyfile(program, path)
    os.chmod(path, 0o755)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def main(arguments: typing.Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python3 -m elastic_worker.startup.deliver DEST", file=sys.stderr)
        return 2
    deliver(arguments[0])
    print("delivered elastic_worker to {}".format(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
