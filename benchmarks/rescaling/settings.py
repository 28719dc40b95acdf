"""Define the ways that are compared to run the same script under torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_training.rendezvous.c10d import TUNING

LARGEST = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run torchrun.

    `is_ours`: the backend elastic, or with `is_in_etcd` elastic-etcd, started as in a pod. Otherwise torch's own c10d: the first agent
    hosts its store, or, with `has_store_pod`, a process of its own does, as in the store pod. `script`: in this folder.
    """

    name: str
    words: str
    colour: str
    is_ours: bool = False
    is_warm: bool = False
    is_in_etcd: bool = False
    has_store_pod: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    configuration: str = ""
    flags: tuple[str, ...] = ()
    patience_s: float = 120.0
    most: int = LARGEST
    script: str = "training.py"

    def command(self, *, is_host: bool, port: int) -> list[str]:
        """Return torchrun's own options that are not in the environment."""
        common = [f"--nnodes=1:{self.most}", "--nproc-per-node=1", *self.flags]
        if self.is_ours:
            return common
        hosting = () if self.has_store_pod else (f"is_host={str(is_host).lower()}",)
        configuration = ",".join(filter(None, (*hosting, self.configuration)))
        endpoint = f"--rdzv-endpoint=127.0.0.1:{port}"
        return [*common, "--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-id=bench", endpoint, f"--rdzv-conf={configuration}"]


SHARING_OFF = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Turns off torch's sharing of the rendezvous store. By default a stock job dies of the first newcomer, so nothing could be measured."""

SETTINGS = (
    Setting(name="stock", words="torchrun, default flags", colour="#b0413e", environment=SHARING_OFF),
    Setting(
        name="tuned",
        words="torchrun, tuned flags",
        colour="#d99a3d",
        environment=SHARING_OFF,
        configuration="last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3",
        patience_s=60.0,
    ),
    Setting(
        name="store",
        words="our c10d, store pod",
        colour="#7a9e7e",
        environment=SHARING_OFF,
        has_store_pod=True,
        configuration=",".join(f"{key}={value}" for key, value in TUNING),
        patience_s=60.0,
    ),
    Setting(
        name="elastic",
        words="elastic, plain start",
        colour="#5b8fb9",
        is_ours=True,
        environment={"ELASTIC_WARM_START": "off"},
        patience_s=60.0,
    ),
    Setting(name="etcd", words="etcd, warm start", colour="#8464a0", is_ours=True, is_warm=True, is_in_etcd=True, patience_s=60.0),
    Setting(
        name="etcd-in-process",
        words="etcd, in process",
        colour="#b39ac6",
        is_ours=True,
        is_warm=True,
        is_in_etcd=True,
        patience_s=60.0,
        script="training_in_process.py",
    ),
    Setting(name="warm", words="elastic, warm start", colour="#2c5f8a", is_ours=True, is_warm=True, patience_s=60.0),
    Setting(
        name="in-process",
        words="elastic, in process",
        colour="#7fb2d6",
        is_ours=True,
        is_warm=True,
        patience_s=60.0,
        script="training_in_process.py",
    ),
)
