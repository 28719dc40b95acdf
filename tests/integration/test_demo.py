"""The demo's path, step by step: what `make demo` promises is there, in this order, in each sandbox that this machine can make."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORY = [
    r"start the laptop cluster",
    r"ready: sandbox {sandbox}",
    r"apply examples/pytorch-in-process/job\.yaml",
    r"job Created",
    r"job Running",
    r"training: step \d+ in a world of 1",
    r"scale to 3",
    r"training: step \d+ in a world of 3",
    r"SIGKILL every process of in-process-worker-1",
    r"training: step \d+ in a world of 3",
    r"touch \S+/enough",
    r"job Succeeded",
    r"trained \d+ steps",
    r"cluster stopped; 0 of its processes left running",
]


@pytest.mark.integration
@pytest.mark.torch
@pytest.mark.timeout(620)
@pytest.mark.parametrize("sandbox", ["netns", pytest.param("loopback", marks=pytest.mark.full)])
def test_the_demo_tells_its_whole_story_and_leaves_nothing_running(sandbox: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo/demo.py"), "--sandbox", sandbox], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    rest = done.stdout
    for step in STORY:
        found = re.search(step.format(sandbox=sandbox), rest)
        assert found, f"missing in the story, or out of order: {step}\n{done.stdout}"
        rest = rest[found.end() :]
