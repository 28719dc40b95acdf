"""Name the place of a job's records in an etcd, and hold the access to that etcd."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdPlace:
    """The place of a job's records in an etcd."""

    endpoints: tuple[str, ...]
    """The members of one etcd, each as a host and a port."""
    prefix: str
    """The prefix of the job's keys, with a slash at its end."""
    is_tls: bool = False
    namespace: str = ""
    secret: str = ""
    """Name of the user's Secret with a login, in the job's namespace, or empty."""
    job: str = ""
    """The job's uid if it meets in the installation's etcd, where each job gets a user; otherwise empty."""

    @property
    def is_own(self) -> bool:
        """Return whether the place is in the installation's etcd."""
        return bool(self.job)


JOB_USER = "elastic-"
"""Prefix of a job's uid in the name of its user and role in the installation's etcd."""


def user_of(job: str) -> str:
    return JOB_USER + job


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The user, the password and the PEM texts for an etcd. Empty ones are not used."""

    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
