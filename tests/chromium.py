"""Drive Debian's Chromium without a screen by the DevTools protocol: open pages, query them, and take pictures of them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START_S, ANSWER_S, LOOK_EVERY_S, GOODBYE_S = 120.0, 60.0, 0.1, 10.0


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.said: list[str] = []
        """The messages of the console, the log and uncaught exceptions. A good page has none."""
        self.asked: list[str] = []
        """The URL of each request."""

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                self.said.append(str(told["params"]["exceptionDetails"].get("exception", {}).get("description", told["params"])))
            elif told["method"] == "Runtime.consoleAPICalled":
                self.said.append(" ".join(str(word.get("value", word.get("description"))) for word in told["params"]["args"]))
            elif told["method"] == "Log.entryAdded":
                self.said.append(f"{told['params']['entry']['text']} {told['params']['entry'].get('url', '')}")
            elif told["method"] == "Network.requestWillBeSent":
                self.asked.append(told["params"]["request"]["url"])

    async def tell(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(ANSWER_S):
            found = await answer
        assert "error" not in found, found
        return dict(found["result"])

    async def open(self, url: str) -> None:
        await self.tell("Page.navigate", url=url)

    async def ask(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        found = await self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def wait(self, script: str, *, within_s: float = ANSWER_S) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(within_s):
            while not await self.ask(f"Boolean({script})"):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_EVERY_S)

    async def press(self, key: str) -> None:
        code, text = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, "")}[key]
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.tell("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        await self.tell("Input.dispatchKeyEvent", type="keyUp", **pressed)

    async def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        await self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.tell("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, file: Path, *, whole: bool = False) -> None:
        found = await self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Page]:
    """Start a browser, and yield its page."""
    assert PROGRAM is not None
    arguments = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run", "--disable-gpu"]
    arguments += ["--disable-background-networking", "--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    process = await asyncio.create_subprocess_exec(PROGRAM, *arguments, "about:blank", stdout=DEVNULL, stderr=DEVNULL)
    try:
        port = await _answer(lambda: (folder / "DevToolsActivePort").read_text().splitlines()[0])
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                (target, *_) = [found for found in await response.json() if found["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.tell(f"{domain}.enable")
                try:
                    yield page
                finally:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
    finally:
        process.terminate()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _answer(ask: Callable[[], str]) -> str:
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(OSError, IndexError):
                return ask()
            await asyncio.sleep(LOOK_EVERY_S)
