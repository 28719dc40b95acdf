"""Check that mistakes in the autoscaler's options are told before anything starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from elastic_training.autoscale.running.main import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--enable-kinds", ""], "--enable-kinds names no kind"),
        (["--enable-kinds", "Pod"], "'Pod' is not a kind of this control plane"),
        (["--rendezvous-url", "https://r"], "--rendezvous-url alone is not enough; give --rendezvous-token and --rendezvous-ca as well"),
        (["--rendezvous-url", "http://r", "--rendezvous-token", "t", "--rendezvous-ca", "c"], "must begin with https://"),
        (["--metrics-port", "70000"], "--metrics-port is 70000 but must be from 1 to 65535"),
    ],
)
def test_a_wrong_option_is_told_in_one_sentence(arguments: list[str], words: str) -> None:
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 2
    assert words in ended.output
