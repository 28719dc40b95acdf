"""Hold what the user asked `elastic install` for, and decide from it and from the installed control plane which values hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic.api.trainer.modes import Mode
from elastic.cli.installing.components import STANDALONE, with_components
from elastic.cli.installing.obstacles import Wanted
from elastic.cli.installing.values.given import Values, joined, placed, without

IMAGE, MODE = "image", "trainjobs"
"""Values that the cluster itself tells: the remembered values are without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The user's options."""

    image: str | None = None
    overlay: str = STANDALONE
    namespace: str
    components: tuple[str, ...] | None = None
    """The components to install; None for those that are installed already."""
    train_jobs: Mode | None = None
    """None: the installed one."""
    files: Values | None = None
    """The values of all files; None if the user gave none, so that the installed ones stay."""
    settings: Values = field(default_factory=dict)
    upgrades: bool = False
    takes_over: bool = False
    is_trial: bool = False
    shows_changes: bool = False
    is_agreed: bool = False
    waits: bool = True
    timeout_s: float = 300

    def wanted(self, groups: tuple[tuple[str, str, str], ...], version: str) -> Wanted:
        return Wanted(self.overlay, self.namespace, groups, version, self.upgrades, self.takes_over)

    def given(self, remembered: Mapping[str, Any], was: Mode) -> Values:
        """Return the given values, without defaults. Files replace everything that an earlier installation was given."""
        if self.files is None:
            made = joined(without(without(remembered, IMAGE), MODE), placed(MODE, was.value) if was is not Mode.OFF else {})
        else:
            made = self.files
        if self.components is not None:
            made = with_components(made, self.components)
        if self.train_jobs is not None:
            made = joined(made, placed(MODE, self.train_jobs.value))
        if self.image is not None:
            made = joined(made, placed(IMAGE, self.image))
        return joined(made, self.settings)
