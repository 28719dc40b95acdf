"""Check that no page or message tells users to install our package by its name. On a package index the name is a stranger's."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BY_NAME = re.compile(r"install[^\n]{0,20}['\" ]elastic[-_]training\b(?![\w.-]*\.whl|:\d)")


def test_nobody_is_told_to_install_our_package_by_its_name() -> None:
    assert BY_NAME.search("pip install 'elastic-training[local]'")
    assert not BY_NAME.search("elastic install --image elastic-training:0.4.0"), "an image"
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.y*ml")]
    code = [path for folder in ("elastic", "controller", "rendezvous", "autoscale", "dashboard") for path in (ROOT / folder).rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in [*pages, *code] if path.exists() and BY_NAME.search(path.read_text())]
    assert found == []
