"""Make and check tokens for a job: HMACs of the job's uid and a role, with the installation's key.

Nothing is stored per job: every process with the key can create and check a token. Two keys are accepted, so that one can be rotated.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

KEY_FILES = ("server.key", "server.key.old")
LEAST_KEY_BYTES = 16


class Role(StrEnum):
    """The rights of a token's holder."""

    AGENT = "agent"  # join, and report, as any member of its job
    LAUNCHER = "launcher"  # read its job's hosts, and report as its job's launcher; neither join nor report as a member
    STATUS = "status"  # report the progress of its job's training in the form of Kubeflow Trainer, and nothing else
    AUTOSCALER = "autoscaler"  # read the progress of every job, and nothing else
    ETCD = "etcd"  # log in to the installation's etcd, as the job's user; for no job as its administrator
    CONTROL = "control"  # send expectations of every job, and read every world


class BadKey(ValueError):
    """The installation's key is missing or unusable."""


def job_token(key: bytes, job_uid: str, role: Role = Role.AGENT) -> str:
    """Return the token for one job and role."""
    return hmac.new(key, f"elastic-rendezvous\0{role.value}\0{job_uid}".encode(), hashlib.sha256).hexdigest()


def control_token(key: bytes) -> str:
    """Return the token of a controller that holds the installation's key."""
    return job_token(key, "", Role.CONTROL)


def autoscaler_token(key: bytes) -> str:
    """Return the token of an autoscaler, which is given no key."""
    return job_token(key, "", Role.AUTOSCALER)


def is_valid(token: str, *, keys: Iterable[bytes], job_uid: str, role: Role = Role.AGENT) -> bool:
    """Return whether one of the keys made this token for this job and role. The token may hold bytes that are not text."""
    return token.isascii() and any(hmac.compare_digest(token.encode(), job_token(key, job_uid, role).encode()) for key in keys)


def load_keys(folder: Path) -> Sequence[bytes]:
    """Return the installation's keys, the current one first."""
    keys = []
    for name in KEY_FILES:
        path = folder / name
        if not path.exists():
            continue
        try:
            key = bytes.fromhex(path.read_text().strip())
        except ValueError as error:
            raise BadKey(f"{path} is not a key in hex digits; create it again with the install step") from error
        if len(key) < LEAST_KEY_BYTES:
            raise BadKey(f"{path} holds {len(key)} bytes but a key needs at least {LEAST_KEY_BYTES}; create it again with the install step")
        keys.append(key)
    if not keys:
        raise BadKey(f"{folder} holds no {KEY_FILES[0]}; point --installation at the installation's folder")
    return keys
