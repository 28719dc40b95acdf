"""Amounts of resources; the whole project's are in elastic.kube.quantity."""

from elastic.kube.quantity import Amounts, amounts, most, parse, total

__all__ = ["Amounts", "amounts", "most", "parse", "total"]
