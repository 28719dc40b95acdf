"""Paths into JSON: a.b[0]["c.d"].*, and ** for any depth."""
import re

MISSING = object()


def parts(path):
    out = []
    for m in re.finditer(r'\[(\d+)\]|\["([^"]+)"\]|([^.\[\]]+)', path):
        out.append(int(m[1]) if m[1] is not None else m[2] if m[2] is not None else m[3])
    return tuple(out)


def lookup(obj, path):
    for p in parts(path):
        if isinstance(p, int) and isinstance(obj, list) and p < len(obj):
            obj = obj[p]
        elif isinstance(obj, dict) and p in obj:
            obj = obj[p]
        else:
            return MISSING
    return obj


def covers(pattern, path):
    """Whether the pattern names this path or one of its parents."""
    if not pattern:
        return True
    if not path:
        return False
    if pattern[0] == "**":
        return covers(pattern[1:], path) or covers(pattern, path[1:])
    return (pattern[0] == "*" or pattern[0] == path[0]) and covers(pattern[1:], path[1:])


def leads_to(pattern, path):
    """Whether the path is on the way to what the pattern names, or under it."""
    if not pattern or not path or pattern[0] == "**":
        return True
    return (pattern[0] == "*" or pattern[0] == path[0]) and leads_to(pattern[1:], path[1:])


def show(path):
    return "".join(f"[{p}]" if isinstance(p, int) else ("." + p if re.fullmatch(r"[\w$-]+", p) else f'["{p}"]') for p in path).lstrip(".") or "."
