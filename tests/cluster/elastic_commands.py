"""Run commands of the CLI against a cluster, as people type them."""

import asyncio
import subprocess
import sys
from pathlib import Path


async def elastic(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastic.cli", words[0], "--kubeconfig", str(kubeconfig), *words[1:]]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=500)
