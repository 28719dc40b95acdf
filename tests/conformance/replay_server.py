"""Requests and watches of the server under test."""
import asyncio, base64, json, pathlib, ssl, tempfile, time

import aiohttp
import yaml

from replay_compare import media


class Server:
    def __init__(self, url=None, kubeconfig=None):
        self.headers, ctx, bare = {"User-Agent": "conformance-replay"}, None, None
        if kubeconfig:
            cfg = yaml.safe_load(open(kubeconfig))
            cur = next(c["context"] for c in cfg["contexts"] if c["name"] == cfg["current-context"])
            cluster = next(c["cluster"] for c in cfg["clusters"] if c["name"] == cur["cluster"])
            user = next(u["user"] for u in cfg["users"] if u["name"] == cur["user"]) or {}
            url = url or cluster["server"]
            if url.startswith("https"):
                def data(d, k):
                    if d.get(k + "-data"):
                        return base64.b64decode(d[k + "-data"])
                    return pathlib.Path(kubeconfig).parent.joinpath(d[k]).read_bytes() if d.get(k) else None
                ca, crt, key = data(cluster, "certificate-authority"), data(user, "client-certificate"), data(user, "client-key")
                ctx, bare = (ssl.create_default_context(cadata=ca.decode() if ca else None) for _ in range(2))
                for c in (ctx, bare):
                    c.check_hostname = False
                    if cluster.get("insecure-skip-tls-verify") or not ca:
                        c.verify_mode = ssl.CERT_NONE
                if crt:
                    with tempfile.NamedTemporaryFile() as a, tempfile.NamedTemporaryFile() as b:
                        a.write(crt), a.flush(), b.write(key), b.flush()
                        ctx.load_cert_chain(a.name, b.name)
            if user.get("token"):
                self.headers["Authorization"] = "Bearer " + user["token"]
        elif url and url.startswith("https"):
            ctx = bare = ssl._create_unverified_context()
        if not url:
            raise SystemExit("--server or --kubeconfig is needed")
        self.base, self.ctx, self.bare = url.rstrip("/"), ctx, bare

    async def __aenter__(self):
        skip = ["Content-Type", "Accept", "User-Agent"]
        mk = lambda ctx: aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ctx if ctx else False, limit=0), skip_auto_headers=skip)
        self.session, self.anonymous = mk(self.ctx), mk(self.bare)
        return self

    async def __aexit__(self, *_):
        await self.session.close()
        await self.anonymous.close()

    def open(self, step, stream=False):
        """An aiohttp request context for a step whose variables are filled in."""
        from yarl import URL
        from urllib.parse import quote
        query = step.get("query") or {}
        pairs = query.items() if isinstance(query, dict) else [tuple(q) for q in query]
        qs = "&".join(f"{quote(str(k), safe='')}={quote(str(v).lower() if isinstance(v, bool) else str(v), safe='')}" for k, v in pairs)
        url = URL(self.base + step["path"] + (("&" if "?" in step["path"] else "?") + qs if qs else ""), encoded=True)
        headers = {k: v for k, v in self.headers.items() if not (k == "Authorization" and step.get("anonymous"))}
        data = None
        if "raw" in step:
            data = step["raw"].encode()
        elif "base64" in step:
            data = base64.b64decode(step["base64"])
        elif "body" in step:
            data = json.dumps(step["body"]).encode()
        if data is not None and step.get("content_type", "application/json"):
            headers["Content-Type"] = step.get("content_type", "application/json")
        if step.get("accept", "application/json"):
            headers["Accept"] = step.get("accept", "application/json")
        headers.update({k: str(v) for k, v in (step.get("headers") or {}).items()})
        timeout = aiohttp.ClientTimeout(total=None if stream else 60, sock_connect=10)
        session = self.anonymous if step.get("anonymous") else self.session
        return session.request(step.get("method", "GET"), url, data=data, headers=headers, timeout=timeout, allow_redirects=False)

    async def call(self, step):
        try:
            async with self.open(step) as r:
                return Answer(r.status, r.headers, await r.read())
        except (aiohttp.ClientError, asyncio.TimeoutError) as e:
            return Answer(0, {}, f"{type(e).__name__}: {e}".encode())


class Answer:
    def __init__(self, status, headers, data):
        self.status, self.headers = status, {}
        for h in ("Content-Type", "Retry-After", "Allow", "ETag"):
            if h in headers:
                self.headers[h] = headers[h]
        warnings = headers.getall("Warning", []) if hasattr(headers, "getall") else []
        if warnings:
            self.headers["Warning"] = list(warnings)
        self.body = data
        if isinstance(data, bytes):
            ct = media(self.headers.get("Content-Type", ""))[0]
            try:
                self.body = data.decode() if data else None
            except UnicodeDecodeError:
                self.body = "(binary)"
            if isinstance(self.body, str) and self.body and (ct == "application/json" or self.body.startswith('{"')):
                try:
                    self.body = json.loads(self.body)
                except ValueError:
                    pass


def busy(step, ans):
    """A server whose cache of a kind is not filled yet says so with 429 to a list or watch; clients try again, and so do we."""
    return ans.status == 429 and "Retry-After" in ans.headers and step.get("method", "GET") == "GET"


class Stream:
    """A watch that is read in the background."""

    def __init__(self, server, step):
        self.server, self.step, self.events, self.ended, self.answer = server, step, [], False, None
        self.started, self.news = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self.run())

    async def run(self, tries=30):
        try:
            async with self.server.open(self.step, stream=True) as r:
                if r.status != 200:
                    self.answer = Answer(r.status, r.headers, await r.read())
                    if busy(self.step, self.answer) and tries:
                        await asyncio.sleep(0.2)
                        await self.run(tries - 1)
                    return
                self.answer = Answer(r.status, r.headers, None)
                self.started.set()
                buf = b""
                async for chunk in r.content.iter_any():
                    buf += chunk
                    while b"\n" in buf:
                        line, buf = buf.split(b"\n", 1)
                        if line.strip():
                            self.events.append(json.loads(line))
                            self.news.set()
                if buf.strip():
                    self.events.append(json.loads(buf))
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as e:
            self.answer = self.answer or Answer(0, {}, f"{type(e).__name__}: {e}".encode())
        finally:
            self.ended = True
            self.started.set(), self.news.set()

    async def opened(self):
        try:
            await asyncio.wait_for(self.started.wait(), 5)
        except asyncio.TimeoutError:
            pass
        return self.answer or Answer(0, {}, b"no response headers within 5 s")

    async def collect(self, count=None, until=None, within=10, bookmarks=False):
        end = time.monotonic() + within
        while True:
            got = [e for e in self.events if bookmarks or e.get("type") != "BOOKMARK"]
            if (count is not None and len(got) >= count) or self.ended or time.monotonic() > end:
                break
            self.news.clear()
            try:
                await asyncio.wait_for(self.news.wait(), max(0.01, end - time.monotonic()))
            except asyncio.TimeoutError:
                pass
        if count is not None:
            got = got[:count]
        if until == "end" and not self.ended:
            got.append({"type": "(the stream did not end)"})
        return got

    async def close(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
