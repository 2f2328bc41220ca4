"""The optimisers are torch's, and on stacked weights they are one optimiser per client."""

import pytest
import torch
from torch import Tensor

from graphfed.nn.optim import Pull, adam, adam_init, optimizer_step, sgd

STEPS, LR, DECAY = 10, 0.05, 0.01
TOLERANCE = {torch.float32: 2e-7, torch.float64: 1e-13}


def draws(seed: int, dtype: torch.dtype, *leading: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = {"weight": (*leading, 4, 3), "bias": (*leading, 3)}
    return {k: torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for k, s in shapes.items()}


@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_ten_steps_equal_those_of_torch(name: str, dtype: torch.dtype, decay: float) -> None:
    weights = draws(0, dtype)
    expected = {k: w.clone().requires_grad_() for k, w in weights.items()}
    kind = torch.optim.SGD if name == "sgd" else torch.optim.Adam
    stepper = kind(expected.values(), lr=LR, weight_decay=decay)
    state = adam_init(weights)
    for step in range(STEPS):
        gradients = draws(step + 1, dtype)
        for k, w in expected.items():
            w.grad = gradients[k].clone()
        stepper.step()
        if name == "sgd":
            weights = sgd(weights, gradients, LR, decay)
        else:
            weights, state = adam(weights, gradients, state, LR, decay)
        close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
        torch.testing.assert_close(weights, {k: w.detach() for k, w in expected.items()}, **close)


@pytest.mark.parametrize("clients", [1, 3, 17])
def test_stacked_adam_is_one_adam_per_client(clients: int) -> None:
    together = draws(0, torch.float64, clients)
    apart = [{k: w[c] for k, w in together.items()} for c in range(clients)]
    state, states = adam_init(together), [adam_init(w) for w in apart]
    for step in range(STEPS):
        gradients = draws(step + 1, torch.float64, clients)
        together, state = adam(together, gradients, state, LR, DECAY)
        for c in range(clients):
            own = {k: g[c] for k, g in gradients.items()}
            apart[c], states[c] = adam(apart[c], own, states[c], LR, DECAY)
    for c in range(clients):
        torch.testing.assert_close({k: w[c] for k, w in together.items()}, apart[c], rtol=1e-14, atol=1e-14)


def test_a_client_that_was_absent_corrects_its_bias_by_its_own_step_count() -> None:
    """Client 1 takes steps 0, 1 and 4 of five; its weights equal those of three steps taken alone."""
    weights = draws(0, torch.float64, 2)
    alone = {k: w[1:].clone() for k, w in weights.items()}
    state, alone_state = adam_init(weights), adam_init(alone)
    for step in range(5):
        gradients = draws(step + 1, torch.float64, 2)
        present = torch.tensor([True, step in {0, 1, 4}])

        def choose(new: Tensor, old: Tensor, present: Tensor = present) -> Tensor:
            return torch.where(present.view(-1, *[1] * (new.dim() - 1)), new, old)

        new, after = adam(weights, gradients, state, LR, DECAY)
        weights = {k: choose(new[k], weights[k]) for k in new}
        state = {part: {k: choose(after[part][k], state[part][k]) for k in new} for part in state}
        if present[1]:
            own = {k: g[1:] for k, g in gradients.items()}
            alone, alone_state = adam(alone, own, alone_state, LR, DECAY)
    assert state["steps"]["weight"].flatten().tolist() == [5, 3]
    torch.testing.assert_close({k: w[1:] for k, w in weights.items()}, alone, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_step_leaves_its_arguments_as_they_were(name: str) -> None:
    weights, gradients = draws(0, torch.float32), draws(1, torch.float32)
    state = adam_init(weights)
    before = [w.clone() for group in (weights, gradients, *state.values()) for w in group.values()]
    if name == "sgd":
        sgd(weights, gradients, LR, DECAY)
    else:
        adam(weights, gradients, state, LR, DECAY)
    after = [w for group in (weights, gradients, *state.values()) for w in group.values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_minimises_its_model_of_the_loss_together_with_the_pull(name: str) -> None:
    """m and D of Adam are read off steps of torch; the minimum is found by Newton's method, in one step."""
    weights, anchor, linear = (draws(seed, torch.float64) for seed in (0, 100, 200))
    pull, state = Pull(0.3, anchor, linear), adam_init(weights)
    for step in range(STEPS):
        gradients = draws(step + 1, torch.float64)
        free, _ = optimizer_step(name, weights, gradients, state, LR, DECAY)
        start = {k: w * (1 - LR * DECAY) if name == "adamw" else w for k, w in weights.items()}
        new, state = optimizer_step(name, weights, gradients, state, LR, DECAY, pull)
        corrected = 1 - 0.999 ** (step + 1)
        for k, found in new.items():
            curvature = ((state["second"][k] / corrected).sqrt() + 1e-8) / LR
            slope = (start[k] - free[k]) * curvature
            w = found.clone().requires_grad_()
            model = slope * (w - start[k]) + curvature / 2 * (w - start[k]) ** 2
            model = model + 0.3 / 2 * (w - anchor[k]) ** 2 + linear[k] * w
            (slope_there,) = torch.autograd.grad(model.sum(), w)
            assert slope_there.abs().max() < 1e-12, k
        weights = new


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_pull_holds_a_weight_without_a_gradient_at_its_anchor(name: str) -> None:
    anchor = draws(0, torch.float64)
    weights = {k: w + 1e-15 for k, w in anchor.items()}
    still = {k: torch.zeros_like(w) for k, w in weights.items()}
    moved, _ = optimizer_step(name, weights, still, adam_init(weights), LR, 0.0, Pull(0.1, anchor))
    for k, w in moved.items():
        assert (w - anchor[k]).abs().max() <= 2e-15, k
