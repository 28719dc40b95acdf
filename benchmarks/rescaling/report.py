"""Write the figures as words, as a table and as a picture."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rescaling import picture
from benchmarks.rescaling.scenarios import SCENARIOS, Measured
from benchmarks.rescaling.settings import SETTINGS

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
ANNOUNCED, UNANNOUNCED = ("add", "sigterm"), ("sigkill", "host", "crash")
AIM_ANNOUNCED_S, AIM_UNANNOUNCED_S = 1.0, 2.5
AIM_AGAINST_STOCK, AIM_WARM_AGAINST_STOCK = 10, 30
LOST = "lost"
IN_SUMMARY = {"stock": "torchrun", "tuned": "torchrun, tuned flags", "warm": "elastic-training"}
PHASES = ("detect", "notice", "drain", "round", "start")


def of(found: Sequence[Measured], setting: str, scenario: str) -> list[Measured]:
    return [measured for measured in found if (measured.setting, measured.scenario) == (setting, scenario)]


def median(found: Sequence[Measured], setting: str, scenario: str) -> float | None:
    """Return the median seconds, or None if there is no measurement or the job was lost in every run."""
    seconds = [measured.seconds for measured in of(found, setting, scenario) if measured.seconds is not None]
    return statistics.median(seconds) if seconds else None


def table(found: Sequence[Measured]) -> str:
    """Return the table of the seconds from the event to the new world's first step: median (least to most, number of runs)."""
    settings = [setting for setting in SETTINGS if any(measured.setting == setting.name for measured in found)]
    rows = [["event", *(setting.words for setting in settings), "stock / warm"]]
    for scenario, words in SCENARIOS.items():
        ratio = _ratio(found, scenario, "stock", "warm")
        cells = [_cell(of(found, setting.name, scenario)) for setting in settings]
        rows.append([words, *cells, f"{ratio:.0f} times" if ratio else "-"])
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def summary(found: Sequence[Measured]) -> str:
    """Return the README's table: medians of torchrun and of our backend with default settings."""
    settings = {name: words for name, words in IN_SUMMARY.items() if any(one.setting == name for one in found)}
    rows = [["seconds from the event to the next step of all", *settings.values()], ["---"] * (len(settings) + 1)]
    for scenario, words in SCENARIOS.items():
        middles = [(of(found, name, scenario), median(found, name, scenario)) for name in settings]
        rows.append([words, *("-" if not runs else f"job {LOST}" if middle is None else f"{middle:.1f}" for runs, middle in middles)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(measured: Sequence[Measured]) -> str:
    seconds = [one.seconds for one in measured if one.seconds is not None]
    lost = len(measured) - len(seconds)
    if not measured:
        return "-"
    if not seconds:
        return f"job {LOST}, {lost} of {lost}"
    spread = f" ({min(seconds):.1f} to {max(seconds):.1f}, n={len(seconds)})" if len(seconds) > 1 else ""
    return f"{statistics.median(seconds):.1f}{spread}" + (f", {LOST} {lost}" if lost else "")


def _ratio(found: Sequence[Measured], scenario: str, slow: str, fast: str) -> float | None:
    slower, faster = median(found, slow, scenario), median(found, fast, scenario)
    return slower / faster if slower and faster else None


def phases(found: Sequence[Measured]) -> str:
    """Return the table of our backends' milliseconds by phase: medians of the server's or controller's figures, and the rest."""
    ours = [setting.name for setting in SETTINGS if setting.is_ours and any(one.phases for one in found if one.setting == setting.name)]
    rows = [[f"event ({'/'.join(ours)})", *PHASES, "rest"], ["---"] * (len(PHASES) + 2)]
    for scenario, words in SCENARIOS.items():
        marks = [_marks([one for one in of(found, name, scenario) if one.phases]) for name in ours]
        rows.append([words, *("/".join(of_phase) for of_phase in zip(*marks, strict=True))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _marks(measured: Sequence[Measured]) -> list[str]:
    if not measured:
        return ["-"] * (len(PHASES) + 1)
    medians = [statistics.median(one.phases.get(name, 0) for one in measured) for name in PHASES]
    return [f"{ms:.0f}" for ms in (*medians, statistics.median(one.rest_ms for one in measured))]


def verdicts(found: Sequence[Measured]) -> list[str]:
    """Return a line for each aim with the measured figure."""
    said = []
    for names, aim, words in ((ANNOUNCED, AIM_ANNOUNCED_S, "announced"), (UNANNOUNCED, AIM_UNANNOUNCED_S, "unannounced")):
        for scenario in names:
            parts = [m.ours_s for setting in ("elastic", "warm") for m in of(found, setting, scenario) if m.ours_s is not None]
            if parts:
                middle = statistics.median(parts)
                said.append(_verdict(f"our part of {scenario} ({words})", f"{middle:.2f} s", f"under {aim:g} s", middle < aim))
    for setting, aim_times in (("elastic", AIM_AGAINST_STOCK), ("warm", AIM_WARM_AGAINST_STOCK)):
        for scenario in ("start", "sigterm", "sigkill"):
            ratio = _ratio(found, scenario, "stock", setting)
            if ratio:
                said.append(
                    _verdict(f"{setting} against stock, {scenario}", f"{ratio:.1f} times", f"{aim_times} times", ratio >= aim_times)
                )
    for setting in ("store", "elastic", "warm"):
        for scenario in SCENARIOS:
            ratio = _ratio(found, scenario, "tuned", setting)
            if ratio:
                said.append(_verdict(f"{setting} against tuned, {scenario}", f"{ratio:.1f} times", "never slower", ratio >= 1))
        lost = sum(1 for measured in found if measured.setting == setting and measured.seconds is None)
        if any(measured.setting == setting for measured in found):
            said.append(_verdict(f"{setting} survives everything", f"{lost} lost", "none lost", lost == 0))
    for other, aim in (("store", 1.0), ("warm", 0.5)):
        for scenario in SCENARIOS:
            ratio = _ratio(found, scenario, other, "etcd")
            if ratio:
                words = "never slower" if aim == 1 else "within twice"
                said.append(_verdict(f"etcd against {other}, {scenario}", f"{ratio:.1f} times", words, ratio >= aim))
    return said


def aims(lines: Sequence[str]) -> str:
    """Return how many verdicts met their aim, and the full lines of the others."""
    missed = [line.removeprefix("MISSED ") for line in lines if line.startswith("MISSED")]
    met = f"Aims met: {len(lines) - len(missed)} of {len(lines)}."
    return "\n".join([f"{met} Missed:\n", *(f"- {line}" for line in missed)] if missed else [met])


def _verdict(what: str, found: str, aim: str, is_met: bool) -> str:
    return f"{'met   ' if is_met else 'MISSED'} {what}: {found} (aim: {aim})"


def _load() -> str:
    """Return how busy the machine was, because that decides how long processes take to start."""
    load = os.getloadavg()[2]
    busy = (
        " Other work kept it busy, which makes every start of a process several times slower." if load > 2 * (os.cpu_count() or 1) else ""
    )
    return f"Load average over the last 15 minutes: {load:.1f}.{busy}"


def write(found: Sequence[Measured], docs: Path) -> None:
    """Renew the figures in docs/rescale.md and README.md, and the picture docs/rescale.svg."""
    page = docs / "rescale.md"
    machine = (
        f"{os.cpu_count()} shared cores, {platform.machine()}, Python {platform.python_version()}, gloo on loopback, one worker per agent"
    )
    parts = [
        table(found),
        f"Seconds: median (least to most, number of runs). Machine: {machine}. {_load()}",
        "Milliseconds by phase and setting, of our backends (medians):",
        phases(found),
        aims(verdicts(found)),
    ]
    _renew(page, "\n".join(part + "\n" for part in parts))
    _renew(docs.parent / "README.md", summary(found) + "\n")
    bars = {
        words: {setting.name: median(found, setting.name, scenario) for setting in SETTINGS if of(found, setting.name, scenario)}
        for scenario, words in SCENARIOS.items()
    }
    (docs / "rescale.svg").write_text(picture.draw(bars))


def _renew(page: Path, figures: str) -> None:
    text = page.read_text()
    head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
    page.write_text(f"{head}{BEGIN}\n{figures}{END}{tail}")
