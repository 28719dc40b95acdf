"""Check amounts of resources as users write them into a job's template, which no API server has read as an amount yet."""

from fractions import Fraction

import pytest

from elastic.kube import quantity
from elastic_training.controller.deciding.objects import quantities as sums


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", Fraction(1, 2)), ("2Gi", Fraction(2 * 1024**3)), ("1.5", Fraction(3, 2)), (".5k", Fraction(500)), ("3.", Fraction(3)),
        ("1e3", Fraction(1000)), ("12E-1", Fraction(6, 5)), ("5E", Fraction(5 * 10**18)), ("-2", Fraction(-2)), ("+7", Fraction(7)),
        (2, Fraction(2)), ("0", Fraction(0)), ("0e99", Fraction(0)),
    ],
)  # fmt: skip
def test_an_amount_is_exact(text: str | int, amount: Fraction) -> None:
    assert quantity.parse(text) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1e400", quantity.MOST), ("9e999999999999", quantity.MOST), ("-1e999999999999", -quantity.MOST), ("20E", quantity.MOST),
        ("1e-400", quantity.LEAST), ("1e-999999999999", quantity.LEAST), ("1" * 200, quantity.MOST),
        ("0." + "0" * 200 + "1e250", quantity.MOST),
    ],
)  # fmt: skip
def test_an_amount_has_the_limits_of_an_api_server_for_any_exponent(text: str, amount: Fraction) -> None:
    """The CRD takes any exponent. Computing 1e999999999999 would hold up the process of all jobs for ever."""
    assert quantity.parse(text) == amount


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "Gi", "--1", "1/3", "1/0", "1_000", "nan", "inf", "1e", "1e1.5", "1" * 300, "1K"])
def test_an_invalid_amount_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


def test_a_sum_of_the_largest_amounts_is_written() -> None:
    assert sums.added([{"cpu": "1e999999999999", "memory": "1Gi"}, {"cpu": 1, "memory": "1Gi"}]) == {"cpu": str(2**63), "memory": "2Gi"}
