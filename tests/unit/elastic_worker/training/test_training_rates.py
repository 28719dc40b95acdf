"""The learning rate follows the size of the world, also through schedulers."""

import pytest
import torch

from elastic_worker.training import rates


def optimizer_of(rate: float | torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def test_rules() -> None:
    optimizer = optimizer_of(0.1)
    rates.linear(optimizer, 2, 8)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)
    rates.square_root(optimizer, 8, 2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
    with pytest.raises(ValueError, match="Both must be above 0"):
        rates.linear(optimizer, 0, 2)


def test_a_rate_in_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.1)
    rates.linear(optimizer_of(rate), 1, 3)
    assert float(rate) == pytest.approx(0.3)


@pytest.mark.parametrize("kind", ["lambda", "step", "cosine"])
def test_a_scheduler_goes_on_from_the_new_rate(kind: str) -> None:
    """A scheduler that computes the rate from its first one would undo the rule in its next step."""

    def scheduled(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        if kind == "lambda":
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        if kind == "step":
            return torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    found = []
    for factor in (1, 3):
        optimizer = optimizer_of(0.1)
        scheduler = scheduled(optimizer)
        for step in range(6):
            optimizer.step()
            scheduler.step()
            if step == 2:
                rates.linear(optimizer, 1, factor, schedulers=[scheduler])
        found.append(optimizer.param_groups[0]["lr"])
    assert found[1] == pytest.approx(3 * found[0])
