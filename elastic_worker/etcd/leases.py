"""Keep an agent's two leases: its own, which holds its record, and the job's, which all agents of the job keep.

The world and the records of ended members must outlive their writers. They are on the job's lease, and go once the job has no agent.
"""

import hashlib
import hmac
import typing

from elastic_worker.etcd.gateway import Refused, Unreachable, number
from elastic_worker.etcd.mirror import Caller


class Leases:
    """Keeps the leases, for one thread. `now` is monotonic."""

    def __init__(self, caller: Caller, *, prefix: str, token: str, own_s: int, job_s: int) -> None:
        self._caller = caller
        self._own_s = own_s
        self._job_s = job_s
        self.own = 0
        # Every agent knows this id, and any of them may create the lease. A process without the token cannot, perhaps with a short time.
        self.job = int.from_bytes(hmac.new(token.encode(), prefix.encode(), hashlib.sha256).digest()[:8], "big") >> 2 | 1
        self.renewed_at = float("-inf")
        """The time of the newest request that was answered with the news that this agent's lease holds."""
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
        """End this agent's own lease, and delete the records on it."""
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
