"""Where a job's records lie in an etcd, and what a visitor needs to get there."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdPlace:
    """endpoints: each a host and a port, of one etcd. prefix: the job's, with a slash at its end. secret.

    The user's Secret with a login, in the job's namespace, or empty. job: its uid, at the installation's etcd, where each job gets a user;
    empty elsewhere.
    """

    endpoints: tuple[str, ...]
    prefix: str
    is_tls: bool = False
    namespace: str = ""
    secret: str = ""
    job: str = ""

    @property
    def is_own(self) -> bool:
        """Whether it is in the installation's etcd."""
        return bool(self.job)


JOB_USER = "elastic-"
"""Before a job's uid: its user and role in the installation's etcd."""


def user_of(job: str) -> str:
    return JOB_USER + job


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """User, password and PEM texts; what is empty is not used."""

    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
