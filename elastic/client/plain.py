"""Make text from a cluster safe to show on a terminal: characters that the terminal would obey are escaped."""


def plain(text: str, keep: str = "") -> str:
    """Return the text on one line, with all unprintable characters escaped except those to keep."""
    return "".join(c if c.isprintable() or c in keep else " " if c == "\n" else c.encode("unicode_escape").decode() for c in text)
