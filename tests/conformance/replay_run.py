"""Runs a scenario, step by step, and judges or records each answer."""
import asyncio, re, time
from datetime import datetime, timezone

from replay_compare import Comparer, brief, matches, media
from replay_paths import MISSING, lookup, parts
from replay_record import Normaliser, plain
from replay_server import Answer, Stream, busy


def fill(v, env):
    if isinstance(v, str):
        m = re.fullmatch(r"\$\{(\w+)\}", v)
        if m and m[1] in env:
            return env[m[1]]
        return re.sub(r"\$\{(\w+)\}", lambda m: str(env[m[1]]) if m[1] in env else m[0], v)
    if isinstance(v, dict):
        return {fill(k, env): fill(x, env) for k, x in v.items()}
    if isinstance(v, list):
        return [fill(x, env) for x in v]
    return v


def satisfied(until, ans):
    for k, want in until.items():
        if k == "status":
            if ans.status != want:
                return False
        elif k == "not_status":
            if ans.status == want:
                return False
        elif (got := lookup(ans.body, k)) is MISSING or (want != "<any>" and got != want):
            return False
    return True


def selected(body, rules):
    """Keeps, in long lists, only the elements that the step names, in the order of the list."""
    for rule in rules or ():
        holder = body
        *way, last = parts(rule["list"])
        for p in way:
            holder = holder[p] if isinstance(holder, list) and isinstance(p, int) and p < len(holder) else holder.get(p, {}) if isinstance(holder, dict) else {}
        if isinstance(holder, dict) and isinstance(holder.get(last), list):
            keep = [x for x in holder[last] if (lookup(x, rule["key"]) if rule.get("key") else x) in rule["in"]]
            holder[last] = sorted(keep, key=lambda x: rule["in"].index(lookup(x, rule["key"]) if rule.get("key") else x)) if rule.get("unordered") else keep
    return body


class Runner:
    def __init__(self, server, record, patience=None):
        self.server, self.record, self.waits_for_sa, self.patience = server, record, True, patience

    async def scenario(self, sc, recorded, word):
        run = word
        env = {"run": run, "ns": f"{sc['name']}-{run}", "now": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
        streams, results, steps_out, created = {}, [], [], []
        by_id = {s["id"]: s for s in (recorded or {}).get("steps", [])}
        if sc.get("namespace"):
            await self.make_namespace(env["ns"])
            created.append(f"/api/v1/namespaces/{env['ns']}")
        try:
            for raw in sc["steps"]:
                step = {"level": sc.get("level", "should"), **raw}
                step["ignore"] = list(sc.get("ignore", [])) + list(raw.get("ignore", [])) if "only" not in raw else list(raw.get("ignore", []))
                if step.get("sleep"):
                    await asyncio.sleep(step["sleep"])
                if "path" not in step and "collect" not in step:
                    continue
                filled = {k: v if k in ("save", "id", "level", "note") else fill(v, env) for k, v in step.items()}
                ans = await self.perform(filled, streams)
                ans.body = selected(plain(ans.body), filled.get("select"))
                for var, path in (step.get("save") or {}).items():
                    got = lookup(ans.body, fill(path, env))
                    env[var] = "(nothing)" if got is MISSING else got
                if self.record:
                    steps_out.append(self.entry(filled, ans, run))
                    by_id[step["id"]] = steps_out[-1]
                results += self.judge(filled, ans, by_id.get(step["id"]), run)
        finally:
            for s in streams.values():
                await s.close()
            for path in fill(sc.get("cleanup", []), env) + created:
                await self.server.call({"method": "DELETE", "path": path, "query": {"gracePeriodSeconds": 0} if "/pods" in path else {}})
        return results, steps_out

    def limit(self, seconds):
        return seconds if self.patience is None else min(seconds, self.patience)

    async def make_namespace(self, ns):
        await self.server.call({"method": "POST", "path": "/api/v1/namespaces", "body": {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ns}}})
        end = time.monotonic() + self.limit(8)
        while self.waits_for_sa:
            if (await self.server.call({"path": f"/api/v1/namespaces/{ns}/serviceaccounts/default"})).status == 200:
                break
            if time.monotonic() > end:
                self.waits_for_sa = False  # this server makes no default accounts
            await asyncio.sleep(0.1)

    async def perform(self, step, streams):
        if "collect" in step:
            c = step["collect"]
            s = streams[c["watch"]]
            first = await s.opened()
            events = await s.collect(c.get("count"), c.get("until"), self.limit(c.get("within", 10)), c.get("bookmarks", False))
            if c.get("close", True):
                await s.close()
            ans = Answer(first.status, {}, None)
            ans.body = events if first.status == 200 else first.body
            if c.get("unordered") and isinstance(ans.body, list):
                ans.body.sort(key=lambda e: (e.get("type"), str(lookup(e, "object.metadata.name"))))
            return ans
        if "watch" in step:
            s = streams[step["watch"]] = Stream(self.server, step)
            return await s.opened()
        wait = step.get("wait")
        end = time.monotonic() + self.limit((wait or {}).get("within", 15))
        while True:
            ans = await self.server.call(step)
            again = busy(step, ans) if not wait else not satisfied(wait["until"], ans)
            if not again or time.monotonic() > end:
                return ans
            await asyncio.sleep((wait or {}).get("every", 0.15))

    def entry(self, step, ans, run):
        n = Normaliser(run, step.get("mask", {}))
        out = {"id": step["id"], "status": ans.status, "headers": {}}
        for k, v in ans.headers.items():
            if k in ("Content-Type", "Warning", "Retry-After") or (k == "ETag" and step.get("etag")) or k == "Allow":
                out["headers"][k] = n.value(v, (), k)
        keep = step.get("keep")
        if keep == "nothing":  # too large, or not meant to be compared
            return out
        body = ans.body
        if keep:
            body = {}
            for p in keep:
                got = lookup(ans.body, p)
                if got is not MISSING:
                    d = body
                    *way, last = parts(p)
                    for w in way:
                        d = d.setdefault(w, {})
                    d[last] = got
        out["body"] = n.value(body)
        return out

    def judge(self, step, ans, rec, run):
        """The checks of one step: its own, and at level should those of warnings and of the causes of a 422."""
        new = lambda suffix, level: {"id": step["id"] + suffix, "level": level, "diffs": [], "texts": [], "text_compared": 0}
        res = new("", step["level"])
        if rec is None:
            res["diffs"].append(("(recording)", "a recorded answer", "none"))
            return [res]
        apart, must = [], step["level"] == "must"
        warn = causes = res
        want_warnings = rec.get("headers", {}).get("Warning") or []
        if must and want_warnings:
            warn = new("/warnings", "should")
            apart.append(warn)
        if must and rec["status"] == 422 and lookup(rec.get("body"), "details.causes") is not MISSING:
            causes = new("/causes", "should")
            apart.append(causes)
        if ans.status != rec["status"]:
            what = lookup(ans.body, "message") if isinstance(ans.body, dict) else ans.body
            res["diffs"].append(("(status)", str(rec["status"]), f"{ans.status}" + (f": {brief(what, 200)}" if isinstance(what, str) else "")))
        for h, want in rec.get("headers", {}).items():
            got = ans.headers.get(h)
            if h == "Content-Type":
                if media(got) != media(want) and not step.get("any_content_type"):
                    res["diffs"].append(("(Content-Type)", want, str(got)))
            elif h != "Warning" and got is None:
                res["diffs"].append((f"({h})", brief(want), "(absent)"))
        got = ans.headers.get("Warning") or []
        if len(got) != len(want_warnings):
            warn["diffs"].append(("(Warning)", brief(want_warnings or "none"), brief(got or "none")))
        else:
            res["text_compared"] += len(want_warnings)
            res["texts"] += [(f"(Warning[{i}])", x, y) for i, (x, y) in enumerate(zip(want_warnings, got)) if not matches(x, y, run)]
        if "body" in rec and not (ans.status != rec["status"] and ans.status == 0):
            c = Comparer(run, step.get("ignore", ()), step.get("only", ()), step.get("managed", False))
            c.compare(rec["body"], MISSING if ans.body is None else ans.body)
            res["diffs"] += c.diffs
            causes["diffs"] += c.causes
            res["texts"] += c.texts
            res["text_compared"] += c.compared_text
            if causes is not res and lookup(ans.body, "details.causes") is MISSING:
                causes["diffs"] = [("details.causes", brief(rec["body"]["details"]["causes"]), "(absent)")]
        for p in step.get("absent", ()):
            if (got := lookup(ans.body, p)) is not MISSING:
                res["diffs"].append((p, "(absent)", brief(got)))
        for p, want in (step.get("same") or {}).items():
            if (got := lookup(ans.body, p)) is MISSING or got != want:
                res["diffs"].append((p, f"the saved value {brief(want, 60)}", "(absent)" if got is MISSING else brief(got, 60)))
        for p, want in (step.get("differs") or {}).items():
            if (got := lookup(ans.body, p)) is MISSING or got == want:
                res["diffs"].append((p, f"not the saved value {brief(want, 60)}", "(absent)" if got is MISSING else brief(got, 60)))
        return [res, *apart]
