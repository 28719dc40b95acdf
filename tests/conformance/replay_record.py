"""What is recorded of an answer: volatile values become placeholders."""
import ipaddress, re, time
from datetime import datetime, timezone

from replay_paths import covers, lookup, parts

PLACE = {
    "uid": r"[0-9A-Za-z][0-9A-Za-z._-]*", "rv": r"[0-9]+", "time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "microtime": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "ip": r"[0-9a-fA-F.:]+", "port": r"[0-9]+",
    "rand": r"[a-z0-9]{5}", "hash": r"\S+", "token": r"\S+", "continue": r"\S+", "n": r"[0-9]+", "any": r".*",
    "age": r"(<unknown>|<invalid>|([0-9]+[smhdy])+|[0-9.]+m?s)",
}
PLACE_RE = re.compile("<(" + "|".join(PLACE) + ")>")
UUID_RE = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
TIME_RE = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d{6})?Z")
EXTRA_SOURCE = "openshift-service-ca.crt"



class Normaliser:
    def __init__(self, run, mask=()):
        self.run, self.mask = run, [(parts(p), v) for p, v in dict(mask).items()]

    def text(self, s):
        s = s.replace(self.run, "${run}")
        s = UUID_RE.sub("<uid>", s)

        def when(m):
            try:
                t = datetime(*(int(x) for x in m.groups()[:6]), tzinfo=timezone.utc)
            except ValueError:
                return m[0]
            if abs(t.timestamp() - time.time()) > 3 * 86400:
                return m[0]  # a constant of the scenario
            return "<microtime>" if m[7] else "<time>"
        s = TIME_RE.sub(when, s)
        s = re.sub(r"kube-api-access-[a-z0-9]{5}", "kube-api-access-<rand>", s)
        s = re.sub(r"resource version: \d+ \(\d+\)", "resource version: <n> (<n>)", s)
        s = re.sub(r"resource version: (\d+), current: \d+", r"resource version: \1, current: <n>", s)
        s = re.sub(r"ResourceVersion in precondition: (\d+), ResourceVersion in object meta: \d+",
                   r"ResourceVersion in precondition: <n>, ResourceVersion in object meta: <n>", s)
        s = re.sub(r'(resourceVersion\\?":\\?")\d+', r"\1<rv>", s)
        s = re.sub(r"ResourceVersion in record \(\d+\)", "ResourceVersion in record (<n>)", s)
        s = re.sub(r"X509SHA256=[0-9a-f]{64}", "X509SHA256=<hash>", s)
        return re.sub(r"\?hash=[0-9A-F]{128}", "?hash=<hash>", s)

    def value(self, v, path=(), key=None, parent=None):
        for pat, repl in self.mask:
            if len(pat) <= len(path) and covers(pat, path):
                return repl.replace(self.run, "${run}") if isinstance(repl, str) else repl
        if isinstance(v, dict):
            return {self.text(k): self.value(x, path + (k,), k, v) for k, x in v.items()}
        if isinstance(v, list):
            return [self.value(x, path + (i,), key, v) for i, x in enumerate(v)]
        if isinstance(v, int) and not isinstance(v, bool):
            return "<port>" if key in ("nodePort", "healthCheckNodePort") else v
        if not isinstance(v, str) or not v:
            return v
        if key == "resourceVersion" and v.isdigit():
            return v if v == "0" else "<rv>"
        if key == "continue":
            return "<continue>"
        if key in ("storageVersionHash", "ETag"):
            return "<hash>"
        if key == "token":
            return "<token>"
        if key == "serverAddress":
            return "<any>"
        if key in ("clusterIP", "clusterIPs") and is_ip(v):
            return "<ip>"
        if key == "cells" and (re.fullmatch(PLACE["age"], v) or is_ip(v)):
            return "<ip>" if is_ip(v) else "<age>"
        if key == "name" and isinstance(parent, dict) and parent.get("generateName") and v.startswith(parent["generateName"]):
            return self.text(v[:-5]) + "<rand>"
        return self.text(v)


def plain(v):
    """Drops what one distribution adds to projected token volumes, so that recordings hold plain Kubernetes; see the README."""
    if isinstance(v, dict):
        return {k: [x for x in plain(x_) if not (isinstance(x, dict) and lookup(x, "configMap.name") == EXTRA_SOURCE)] if k == "sources" and isinstance(x_, list) else plain(x_)
                for k, x_ in v.items()}
    return [plain(x) for x in v] if isinstance(v, list) else v


def is_ip(v):
    try:
        return bool(ipaddress.ip_address(v))
    except ValueError:
        return False
