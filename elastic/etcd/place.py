"""Describe where a job's records are in an etcd, and which login reaches them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdPlace:
    """The place of a job's records in an etcd.

    `endpoints` are the hosts and ports of one etcd. `prefix` is the job's and ends with a slash. `secret` names the user's Secret with a
    login, in the job's namespace, or is empty. `job` is the job's uid if it meets in the installation's etcd, where each job has a user.
    """

    endpoints: tuple[str, ...]
    prefix: str
    is_tls: bool = False
    namespace: str = ""
    secret: str = ""
    job: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the place is in the installation's etcd."""
        return bool(self.job)


JOB_USER = "elastic-"
"""Prefix of a job's uid in the name of its user and role in the installation's etcd."""


def user_of(job: str) -> str:
    return JOB_USER + job


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """User, password and PEM texts; empty fields are not used."""

    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
