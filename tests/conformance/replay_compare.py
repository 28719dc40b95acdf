"""Compares an answer with what was recorded, by the rule that replay.py states."""
import json, re

from replay_paths import MISSING, covers, leads_to, parts, show
from replay_record import PLACE, PLACE_RE


def matches(expected, actual, run):
    """A recorded string, which may hold placeholders, against an answered scalar."""
    if not isinstance(actual, (str, int)) or isinstance(actual, bool):
        return False
    pat, last = "", 0
    for m in PLACE_RE.finditer(expected):
        pat += re.escape(expected[last:m.start()].replace("${run}", run)) + "(?:" + PLACE[m[1]] + ")"
        last = m.end()
    pat += re.escape(expected[last:].replace("${run}", run))
    return re.fullmatch(pat, str(actual), re.S) is not None


class Comparer:
    def __init__(self, run, ignore=(), only=(), managed=False):
        self.run, self.managed = run, managed
        self.ignore, self.only = [parts(p) for p in ignore], [parts(p) for p in only]
        self.diffs, self.causes, self.texts, self.compared_text = [], [], [], 0

    def is_text(self, path, holder, key):
        if key == "message":
            if isinstance(holder, dict) and holder.get("kind") == "Status":
                return True
            return "causes" in path[-3:] or "conditions" in path[-3:]
        return key == "description" and "columnDefinitions" in path[-3:]

    def compare(self, exp, act, path=(), holder=None):
        key = path[-1] if path else None
        if any(covers(p, path) for p in self.ignore):
            return
        if self.only and not any(leads_to(p, path) for p in self.only):
            return
        if key == "managedFields" and not self.managed:
            return
        if act is MISSING:
            if exp in (None, "", {}, []) and exp is not False and exp != 0:
                return
            if isinstance(exp, dict) and not self.managed and set(exp) == {"managedFields"}:
                return
            self.bad(path, exp, "(absent)", self.is_text(path, holder, key))
        elif isinstance(exp, dict):
            if not isinstance(act, dict):
                return self.bad(path, exp, act)
            for k, v in exp.items():
                k2 = k.replace("${run}", self.run)
                self.compare(v, act.get(k2, MISSING), path + (k,), exp)
        elif isinstance(exp, list):
            if not isinstance(act, list):
                if not exp and act is None:
                    return
                return self.bad(path, exp, act)
            if key == "causes":
                exp, act = once(exp), once(act)
            elif key in ("verbs", "shortNames", "categories"):
                exp, act = sorted(exp, key=str), sorted(act, key=str)
            if len(exp) != len(act):
                self.bad(path, f"{len(exp)} items: {brief(exp)}", f"{len(act)} items: {brief(act)}")
            for i, (x, y) in enumerate(zip(exp, act)):
                self.compare(x, y, path + (i,), exp)
        else:
            text = self.is_text(path, holder, key)
            self.compared_text += text
            if isinstance(exp, str) and ("<" in exp or "${run}" in exp):
                ok = matches(exp, act, self.run)
            elif isinstance(exp, bool) or isinstance(act, bool):
                ok = exp is act
            else:
                ok = exp == act
            if not ok:
                self.bad(path, exp, act, text)

    def bad(self, path, exp, act, text=False):
        into = self.texts if text else self.causes if path[:2] == ("details", "causes") else self.diffs
        into.append((show(path), brief(exp), brief(act)))


def once(items):
    """The causes of a Status in a fixed order and without repetitions: the real server lists some twice, and some in random order."""
    key = lambda c: (str(c.get("field")), str(c.get("reason"))) if isinstance(c, dict) else (str(c), "")
    return sorted((x for i, x in enumerate(items) if x not in items[:i]), key=key)


def brief(v, n=300):
    s = v if isinstance(v, str) else json.dumps(v, default=str)
    s = s.replace("\n", "\\n")
    return s if len(s) <= n else s[:n] + "..."


def media(ct):
    main, *params = [x.strip() for x in (ct or "").split(";")]
    return main.lower(), sorted(p for p in params if p and not p.lower().startswith("charset"))
