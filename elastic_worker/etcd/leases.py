"""Keep the two leases of an agent: its own lease and the job's lease.

The agent's record is tied to its own lease. Every agent of the job renews the job's lease. The world, and the records of members that have
ended, are tied to the job's lease, because they must outlive their writers. etcd deletes them once no agent renews it.
"""

import hashlib
import hmac
import typing

from elastic_worker.etcd.gateway import Refused, Unreachable, number
from elastic_worker.etcd.mirror import Caller


class Leases:
    """The leases, used by one thread. `now` is monotonic."""

    def __init__(self, caller: Caller, *, prefix: str, token: str, own_s: int, job_s: int) -> None:
        self._caller = caller
        self._own_s = own_s
        self._job_s = job_s
        self.own = 0
        # Every agent can compute this id, so any agent can be first. Without the token, nobody can take it with a lease that is too short.
        self.job = int.from_bytes(hmac.new(token.encode(), prefix.encode(), hashlib.sha256).digest()[:8], "big") >> 2 | 1
        self.renewed_at = float("-inf")
        """The time at which the newest successful renewal of this agent's lease was requested."""
        self.renew_at = 0.0
        self._renew_job_at = 0.0

    def keep(self, now: float) -> bool:
        """Renew the leases that are due. Return False if this agent's lease has ended; the next call asks for a new one."""
        if not self.own:
            self.own = number(self._caller.call("lease/grant", {"TTL": str(self._own_s)}), "ID")
            if not self.own:
                raise Unreachable("it gave no lease: is it an etcd?")
        elif now < self.renew_at:
            self._keep_job(now)
            return True
        elif not self._is_alive(self.own):
            self.own = 0
            return False
        self.renewed_at, self.renew_at = now, now + self._own_s / 3
        self._keep_job(now)
        return True

    def forget(self, lease: int) -> None:
        """Note that etcd does not know this lease."""
        if lease == self.job:
            self._renew_job_at = 0.0
        elif lease == self.own:
            self.own = 0

    def revoke(self) -> None:
        """End this agent's own lease, so that etcd deletes its record."""
        if self.own:
            self._caller.call("lease/revoke", {"ID": str(self.own)})

    def _keep_job(self, now: float) -> None:
        if now < self._renew_job_at:
            return
        if not self._is_alive(self.job):
            try:
                self._caller.call("lease/grant", {"ID": str(self.job), "TTL": str(self._job_s)})
            except Refused as error:
                if "lease already exists" not in str(error):
                    raise
        self._renew_job_at = now + self._job_s / 5

    def _is_alive(self, lease: int) -> bool:
        result = self._caller.call("lease/keepalive", {"ID": str(lease)}).get("result")
        return isinstance(result, dict) and number(typing.cast(typing.Dict[str, typing.Any], result), "TTL") > 0
