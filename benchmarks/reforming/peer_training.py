"""The training script of other ways to go on after a loss: the model and the step time of our own workers, without our library.

Arguments: `stock` or `nvrx`, a folder, and the milliseconds of a step. Each process appends a line to FOLDER/first after its first step of
each world: the time by the monotonic clock, its pid, and the size of the world. It ends once FOLDER/stop exists.
"""

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

kind, folder, step_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) / 1000
WIDTH, SAMPLES = 32, 6
INTERVAL = datetime.timedelta(milliseconds=50)
"""Every interval of NVRx. Its defaults of 1 s make it slower."""


def train() -> None:
    """Train in the present group until it is broken, or until the benchmark says stop."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).double(), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    is_first = True
    while not (folder / "stop").exists():
        loss = (model(torch.ones(SAMPLES, 16, dtype=torch.float64)) ** 2).mean()
        time.sleep(step_s)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_first:
            is_first = False
            with (folder / "first").open("a") as file:
                file.write(f"{time.monotonic():.4f} {os.getpid()} {dist.get_world_size()}\n")


def under_nvrx() -> None:
    """Train inside NVRx's wrapper, which calls the function again after a loss."""
    from nvidia_resiliency_ext import inprocess  # type: ignore[import-not-found]

    def body(call_wrapper: inprocess.CallWrapper | None = None) -> None:
        assert call_wrapper is not None
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        port = int(os.environ["MASTER_PORT"]) + 1
        own = TCPStore("127.0.0.1", port, size, is_master=rank == 0, multi_tenant=True, timeout=datetime.timedelta(seconds=30))
        store = PrefixStore(str(call_wrapper.iteration), own)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=5))
        train()

    inprocess.Wrapper(
        store_kwargs={"timeout": datetime.timedelta(seconds=30), "port": int(os.environ["MASTER_PORT"]) + 2},
        monitor_thread_interval=INTERVAL,
        monitor_process_interval=INTERVAL,
        heartbeat_interval=INTERVAL,
        progress_watchdog_interval=INTERVAL,
        last_call_wait=INTERVAL,
        soft_timeout=datetime.timedelta(seconds=10),
        hard_timeout=datetime.timedelta(seconds=20),
    )(body)()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if kind == "nvrx":
        under_nvrx()
    else:
        dist.init_process_group("gloo")
        train()
        dist.destroy_process_group()
