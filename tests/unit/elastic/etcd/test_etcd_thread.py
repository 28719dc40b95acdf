"""The thread that serves all etcds ends with what it does, also while an etcd is silent."""

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import Mapping

import pytest

from elastic.etcd.thread import EtcdThread
from elastic.etcd.visits import Own


async def no_secret(namespace: str, name: str) -> Mapping[str, str]:
    raise AssertionError("nobody names a Secret here")


async def test_a_thread_that_waits_for_a_silent_etcd_ends_with_its_controller(caplog: pytest.LogCaptureFixture) -> None:
    """Asyncio complained of a task that was destroyed while it was pending."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        own = Own(endpoints=(f"127.0.0.1:{silent.getsockname()[1]}",), ca="", password_for=lambda job: "secret", is_eager=True)
        thread = EtcdThread(token_for=lambda uid: "token", read_secret=no_secret, own=own)
        listening = asyncio.create_task(anext(aiter(thread.worlds())))
        peer, _ = await asyncio.get_running_loop().run_in_executor(None, silent.accept)
        with peer:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
        assert not [one.name for one in threading.enumerate() if one.name == "elastic-etcd"]
    gc.collect()
    assert "was destroyed" not in caplog.text
