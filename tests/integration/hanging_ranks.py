"""Start the ranks of tests/fixtures/hangs/train.py as plain processes, and look at them until a condition holds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torch_agents import ROOT, wait_until

from elastic_worker.looking.watching import Watched

SCRIPT = ROOT / "tests/fixtures/hangs/train.py"
PATIENCE_S = 100.0
PAUSE_S = 0.15

Fields = dict[str, object]


class Ranks:
    """The processes of one training, without agents. A test looks at them when it likes."""

    def __init__(self, folder: Path, way: str, *, size: int = 2, slow_s: float = 600.0, **variables: str) -> None:
        self.folder = folder
        self._size = size
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
        environment |= {
            "INIT_METHOD": f"file://{folder}/init",
            "WORLD_SIZE": str(size),
            "OMP_NUM_THREADS": "1",
            "SLOW_S": str(slow_s),
        } | variables
        self.processes = []
        for rank in range(size):
            with open(folder / f"{rank}.out", "wb") as out:
                command = [sys.executable, str(SCRIPT), way, str(folder)]
                own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                self.processes.append(subprocess.Popen(command, env=own, cwd=SCRIPT.parent, stdout=out, stderr=out, start_new_session=True))
        self._watched = [Watched(process.pid, look_s=0.0) for process in self.processes]

    def wait_for(self, name: str, rank: int) -> None:
        """Wait until this rank has written a mark, such as `at-1`."""
        wait_until((self.folder / f"{name}-{rank}").exists, what=lambda: f"{name}-{rank}\n{self.output()}", patience_s=PATIENCE_S)

    def look(self, rank: int) -> Fields:
        """Look at a rank once."""
        return self._watched[rank].look(size=self._size).fields

    def look_until(self, rank: int, holds: Callable[[Fields], bool]) -> Fields:
        """Look at a rank again and again until a look shows this."""
        began, seen = time.monotonic(), []
        while time.monotonic() - began < PATIENCE_S:
            seen.append(self.look(rank))
            if holds(seen[-1]):
                return seen[-1]
            time.sleep(PAUSE_S)
        raise AssertionError(f"rank {rank} never did that; the last looks: {seen[-8:]}\n{self.output()}")

    def cpu_ticks(self, rank: int) -> int:
        """Return the CPU time that a rank has used."""
        words = Path(f"/proc/{self.processes[rank].pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[11]) + int(words[12])

    def output(self) -> str:
        """Return what the ranks have written."""
        return "\n".join(f"--- {rank}\n{(self.folder / f'{rank}.out').read_text()[-3000:]}" for rank in range(self._size))

    def stop(self) -> None:
        """Kill the ranks and their child processes."""
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
