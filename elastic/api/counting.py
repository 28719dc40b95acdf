"""Numbers of things in sentences."""


def counted(number: int, noun: str, *verb: str) -> str:
    """`1 worker`, `3 workers`; with the two forms of a verb, `1 worker is` and `3 workers are`."""
    singular, plural = (f" {form}" for form in verb) if verb else ("", "")
    return f"{number} {noun}{singular}" if number == 1 else f"{number} {noun}s{plural}"
