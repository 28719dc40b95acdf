"""Text of a cluster as a terminal may show it: what it would obey is written out."""


def plain(text: str, keep: str = "") -> str:
    """On one line."""
    return "".join(c if c.isprintable() or c in keep else " " if c == "\n" else c.encode("unicode_escape").decode() for c in text)
