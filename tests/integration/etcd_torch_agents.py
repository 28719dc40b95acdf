"""torchrun agents of one job that meet in a real etcd, by hand or with a controller's word."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

from etcd_server import Etcd, coded
from torch_agents import ROOT, TRAINING, Agents, wait_until

from elastic_worker.etcd.records import EXPECTED, WORLD, Expected, Record, Seal, World


class EtcdAgents(Agents):
    """Agents of one job that meet in an etcd. The library is delivered into a folder, as it is into an image without it."""

    def __init__(
        self,
        folder: Path,
        etcd: Etcd,
        *,
        job: str = "by-hand",
        conf: str = "",
        token: str = "",
        script: str = TRAINING,
        steps: int = 1_000_000,
        pace_s: float = 0.05,
        **login: str,
    ) -> None:
        super().__init__(folder, None, job=job, script=script, steps=steps, pace_s=pace_s)
        self.etcd = etcd
        self.conf = conf
        self.token = token
        self.login = login
        self._delivered = folder / "library"
        deliver = [sys.executable, str(ROOT / "elastic_worker/startup/deliver.py"), str(self._delivered)]
        subprocess.run(deliver, check=True, capture_output=True)

    def rendezvous(self) -> dict[str, str]:
        environment = {"PET_RDZV_BACKEND": "elastic-etcd", "PET_RDZV_ENDPOINT": self.etcd.endpoint, "PYTHONPATH": str(self._delivered)}
        environment |= {"PET_RDZV_CONF": self.conf} if self.conf else {}
        return environment | self.login | ({"ELASTIC_TOKEN": self.token} if self.token else {})

    def situation(self) -> str:
        return f"{self.world()}\n--- etcd\n{self.etcd.log()}"

    def world(self) -> World | None:
        record = self.record(WORLD)
        return record if isinstance(record, World) else None

    def record(self, key: str) -> Record | None:
        try:
            value = self.etcd.value(f"/elastic-training/{self.job}/{key}")
        except OSError:
            return None  # no etcd answers
        return Seal(self.token, self.job).open(key, value) if value is not None else None

    def expect(self, *names: str, **fields: Any) -> None:
        """Write what a controller expects."""
        key, record = f"/elastic-training/{self.job}/{EXPECTED}", Expected(**{"members": names, "min": 1, "max": 8, **fields})
        value = base64.b64encode(Seal(self.token, self.job).close(EXPECTED, record)).decode()
        self.etcd.call("kv/put", {"key": coded(key), "value": value})

    def wait_for_end(self, name: str) -> int:
        wait_until(lambda: self.processes[name].poll() is not None, what=lambda: f"{name} ends\n{self.describe()}")
        return int(self.processes[name].returncode)
