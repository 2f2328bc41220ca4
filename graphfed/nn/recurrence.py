"""Gated recurrent units, run over time for many series at once, with an explicit backward pass.

    G sets of weights, C columns (series) of each, T steps, D inputs, H hidden

All steps of a block of series run before those of the next block, so that a step finds the results of the
step before in the cache. A step of a block is two batched products and a few passes in place. Series are
columns, so that every gate is a contiguous block of rows. With the inputs x and a one below the state h,

    a = M [h; x; 1]     rows r and z, and n: the part of the candidate that reads the state
    b = N [x; 1]        the part of the candidate that reads the inputs
    r, z = sigmoid(a_r), sigmoid(a_z);   c = tanh(b + r * a_n);   h' = c + z * (h - c)

so one product computes biases, inputs and state of a gate. Autograd would save a tensor for every operation.
The explicit backward pass saves state, gates and candidate of a step, and computes no product twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: The number of series of a block. Products of widths 64 and 128 are equally fast with 256 to 512 columns,
#: and on two threads about 1.5 times as fast as with 26 496 columns (207 clients with 128 windows each).
SERIES = 512


@dataclass(frozen=True)
class Cell:
    """The weights of one layer.

    Attributes:
        state: [G, 3H, H+D+1], the matrix M.
        inputs: [G, H, D+1], the matrix N.
    """

    state: Tensor
    inputs: Tensor

    @property
    def hidden(self) -> int:
        """The hidden width, H."""
        return self.inputs.shape[1]


def unroll(
    cells: Sequence[Cell],
    states: Sequence[Tensor],
    frames: Tensor,
    readout: Tensor | None = None,
    reads_forecast: Sequence[bool] = (),
    products: torch.dtype | None = None,
) -> list[Tensor]:
    """Run stacked layers over time. Differentiable once, in all tensors.

    Args:
        cells: The weights of the L layers. A layer after the first has D = H of the layer before.
        states: [G, H, C] each, the states that the layers start from.
        frames: [G, T, D, C], the inputs.
        readout: [G, 1, H+1], which computes a forecast from [h; 1] of the last layer. None: no forecasts.
        reads_forecast: For each step, whether its first input is the forecast of the step before, in the
            place of that of the frame. False for the first step. (): False for all.
        products: The dtype of matrix products. None: that of `frames`.

    Returns:
        Without a readout the last state of each layer, [G, H, C]; with a readout the forecasts alone,
        [G, T, C].
    """
    own_inputs = tuple(reads_forecast) or (False,) * frames.shape[1]
    plan = _Plan(len(cells), readout is not None, own_inputs, products)
    tensors = (frames, *([] if readout is None else [readout]), *states)
    tensors += tuple(w for cell in cells for w in (cell.state, cell.inputs))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Unrolled.apply(plan, *tensors))  # type: ignore[no-untyped-call]
    # Without gradients no block keeps its steps.
    return _forward(plan, tensors, None)


@dataclass(frozen=True)
class _Plan:
    """The arguments of `unroll` that are not tensors: the number of layers, whether there is a readout, which
    steps read the forecast before, and the dtype of products.
    """

    layers: int
    reads_out: bool
    reads_forecast: tuple[bool, ...]
    products: torch.dtype | None

    def unpack(self, tensors: Sequence[Any]) -> tuple[Any, Any, list[Any], list[Any], list[Any]]:
        """Return the frames, the readout, and for every layer the states, the matrices M and matrices N."""
        first = 1 + self.reads_out
        states, weights = list(tensors[first : first + self.layers]), list(tensors[first + self.layers :])
        return tensors[0], tensors[1] if self.reads_out else None, states, weights[::2], weights[1::2]


def _blocks(groups: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Divide groups and columns into blocks of at most SERIES series."""
    # First as many columns of one set of weights as fit; then, if they are few, several sets.
    wide = max(1, min(columns, SERIES))
    deep = SERIES // wide
    for g in range(0, groups, deep):
        for c in range(0, columns, wide):
            yield slice(g, g + deep), slice(c, c + wide)


def _forward(plan: _Plan, tensors: Sequence[Tensor], kept: "list[_Block] | None") -> list[Tensor]:
    """Compute the results of `unroll`. Blocks are appended to `kept`, if given, for the backward pass."""
    frames, readout, states, of_state, of_inputs = plan.unpack(tensors)
    groups, steps, _, columns = frames.shape
    if plan.reads_out:
        results = [frames.new_empty(groups, steps, columns)]
    else:
        results = [torch.empty_like(state, memory_format=torch.contiguous_format) for state in states]
    for g, c in _blocks(groups, columns):
        cells = [Cell(m[g], n[g]) for m, n in zip(of_state, of_inputs, strict=True)]
        block_readout = None if readout is None else readout[g]
        block = _Block(plan, cells, block_readout, frames[g, :, :, c], kept is not None)
        results_of_block = block.forward([state[g, :, c] for state in states])
        for whole, result in zip(results, results_of_block, strict=True):
            whole[g, ..., c] = result
        if kept is not None:
            kept.append(block)
    return results


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.plan, ctx.blocks = plan, []
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.save_for_backward(*tensors)
        return tuple(_forward(plan, tensors, ctx.blocks))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        needed = ctx.needs_input_grad[1:]
        grads = [
            upstream[0].new_zeros(shape) if need else None
            for shape, need in zip(ctx.shapes, needed, strict=True)
        ]
        frames, readout, states, of_state, of_inputs = plan.unpack(grads)
        groups, _, _, columns = plan.unpack(ctx.shapes)[0]
        # The memory of a block is freed as soon as its gradients are added. A second backward pass over the
        # same graph computes the blocks again.
        blocks: list[_Block] | None = ctx.blocks
        ctx.blocks = None
        if blocks is None:
            blocks = []
            _forward(plan, ctx.saved_tensors, blocks)
        # Reversed, so that `pop` takes the blocks in order. No other list holds them.
        blocks.reverse()
        for g, c in _blocks(groups, columns):
            block = blocks.pop()
            into = _Gradients(
                None if frames is None else frames[g, :, :, c],
                None if readout is None else readout[g],
                [None if m is None else m[g] for m in of_state],
                [None if n is None else n[g] for n in of_inputs],
            )
            start_grads = block.backward([grad[g, ..., c] for grad in upstream], into)
            for whole, grad in zip(states, start_grads, strict=True):
                if whole is not None:
                    whole[g, :, c] = grad
        return None, *grads


@dataclass(frozen=True)
class _Gradients:
    """The tensors that a block adds its gradients to; None for a gradient that is not needed."""

    frames: Tensor | None
    readout: Tensor | None
    of_state: list[Tensor | None]
    of_inputs: list[Tensor | None]


class _Layer:
    """One layer on one block, with the values of its steps that the backward pass needs.

    There is a slot for every step; without a backward pass all steps share one slot, and two slots of `state`
    and `read`, because a step reads one and writes the other.

    Attributes:
        state: [slots + 1, G, H, C], the states. A view of `read` if the dtype of products is that of `state`.
        read: [slots + 1, G, H+D+1, C], the columns [h; x; 1] in the dtype of products.
        gates: [slots, G, 3H, C], the values r, z and a_n.
        candidate: [slots, G, H, C].
    """

    def __init__(self, cell: Cell, like: Tensor, slots: int, products: torch.dtype) -> None:
        groups, columns, hidden = like.shape[0], like.shape[-1], cell.hidden
        self.hidden = hidden
        self.of_state, self.of_inputs = cell.state.to(products), cell.inputs.to(products)
        # tanh(a) = 2 sigmoid(2a) - 1, and the sigmoid is several times faster, so the products compute 2a.
        self.twice_of_inputs = 2 * self.of_inputs
        self.read = like.new_empty(slots + 1, groups, cell.state.shape[2], columns, dtype=products)
        # The row of ones multiplies the biases.
        self.read[:, :, -1] = 1
        # One buffer for h and [h; x; 1]: a step writes its result where the next product reads it.
        self.state = self.read[:, :, :hidden]
        if products != like.dtype:
            self.state = like.new_empty(self.state.shape)
        self.gates = like.new_empty(slots, groups, 3 * hidden, columns)
        self.candidate = like.new_empty(slots, groups, hidden, columns)

    def start(self, state: Tensor) -> None:
        """Set the state [G, H, C] that the first step starts from."""
        self.state[0] = state

    def after(self, t: int) -> Tensor:
        """Return the state after step t, [G, H, C]."""
        return self.state[(t + 1) % len(self.state)]

    def step(self, t: int, inputs: Tensor, first: Tensor | None) -> Tensor:
        """Run step t. Returns the state after it, [G, H, C].

        Args:
            t: Number of the step, from 0.
            inputs: [G, D, C], the frame, or the states of the layer below.
            first: [G, 1, C], a value in the place of the first input. None: the input itself.
        """
        hidden, slot, turn = self.hidden, t % len(self.gates), t % len(self.state)
        state, read, gates, candidate = (
            self.state[turn],
            self.read[turn],
            self.gates[slot],
            self.candidate[slot],
        )
        if read.dtype != state.dtype:
            read[:, :hidden] = state
        read[:, hidden:-1] = inputs
        if first is not None:
            read[:, hidden : hidden + 1] = first
        # a = M [h; x; 1], and 2 b = 2 N [x; 1]
        _multiply(self.of_state, read, gates)
        _multiply(self.twice_of_inputs, read[:, hidden:], candidate)
        r, z, of_state = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
        # r and z in place; then c = 2 sigmoid(2 b + 2 r a_n) - 1 = tanh(b + r a_n)
        gates[:, : 2 * hidden].sigmoid_()
        candidate.addcmul_(r, of_state, value=2).sigmoid_()
        torch.add(candidate.new_tensor(-1.0), candidate, alpha=2, out=candidate)
        # h' = c + z (h - c), written into the slot that the next step reads
        return torch.lerp(candidate, state, z, out=self.after(t))

    def step_back(self, t: int, grad: Tensor, inputs: int) -> tuple[Tensor, Tensor | None]:
        """Run the backward pass of step t.

        The gradients of a and b overwrite the step's gates and candidate, for `weights_back`.

        Args:
            t: Number of the step, from 0.
            grad: [G, H, C], the gradient of the state after the step. It is overwritten.
            inputs: For how many of the step's inputs a gradient is needed.

        Returns:
            The gradients of the state before the step [G, H, C], and of the first `inputs` inputs
            [G, inputs, C]; None if `inputs` is 0.
        """
        hidden, state, gates, candidate = self.hidden, self.state[t], self.gates[t], self.candidate[t]
        both, of_state = gates[:, : 2 * hidden], gates[:, 2 * hidden :]
        r, z = both.chunk(2, 1)
        # h' = c + z (h - c) with c = tanh(b + r a_n). For the gradient g of h' those of z and c are (h - c) g
        # and (1 - z) g. That of b, (1 - c^2) (1 - z) g, overwrites c; those of r and a_n are a_n and r times
        # it.
        before = grad * z
        of_both = torch.empty_like(both)
        of_r, of_z = of_both.chunk(2, 1)
        torch.sub(state, candidate, out=of_z).mul_(grad)
        torch.ops.aten.tanh_backward.grad_input(grad.sub_(before), candidate, grad_input=candidate)
        torch.mul(candidate, of_state, out=of_r)
        torch.mul(candidate, r, out=of_state)
        torch.ops.aten.sigmoid_backward.grad_input(of_both, both, grad_input=both)
        # M' a-gradient reaches h; M' a-gradient + N' b-gradient reaches x. Biases follow in `weights_back`.
        gates, candidate = gates.to(self.read.dtype), candidate.to(self.read.dtype)
        _add_product(before, self.of_state[:, :, :hidden].transpose(1, 2), gates)
        if not inputs:
            return before, None
        of_read = torch.bmm(self.of_state[:, :, hidden : hidden + inputs].transpose(1, 2), gates)
        of_read = of_read.to(grad.dtype)
        _add_product(of_read, self.of_inputs[:, :, :inputs].transpose(1, 2), candidate)
        return before, of_read

    def weights_back(self, of_state: Tensor | None, of_inputs: Tensor | None) -> None:
        """Add the gradients of M and N, each by one product over all steps. Called after all `step_back`."""
        # Steps as further columns: one product [.., T*C] x [T*C, ..] adds up over the steps.
        read = _side_by_side(self.read[:-1]).transpose(1, 2)
        if of_state is not None:
            _add_product(of_state, _side_by_side(self.gates).to(read.dtype), read)
        if of_inputs is not None:
            _add_product(of_inputs, _side_by_side(self.candidate).to(read.dtype), read[:, :, self.hidden :])


def _side_by_side(steps: Tensor) -> Tensor:
    """Arrange the columns of all steps [T, G, F, C] side by side, [G, F, T*C]."""
    return steps.permute(1, 2, 0, 3).flatten(2)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write left @ right to `out`, which may have another dtype."""
    if left.dtype == out.dtype:
        torch.bmm(left, right, out=out)
    else:
        out.copy_(torch.bmm(left, right))


def _add_product(whole: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to `whole`, which may have another dtype."""
    if left.dtype == whole.dtype:
        whole.baddbmm_(left, right)
    else:
        whole.add_(torch.bmm(left, right))


class _Block:
    """All layers on one block of series, over all steps."""

    def __init__(
        self, plan: _Plan, cells: Sequence[Cell], readout: Tensor | None, frames: Tensor, keep: bool
    ) -> None:
        # Only a backward pass needs the values of all steps.
        slots = len(plan.reads_forecast) if keep else 1
        products = plan.products or frames.dtype
        self.plan, self.frames, self.readout = plan, frames, readout
        self.layers = [_Layer(cell, frames, slots, products) for cell in cells]

    def forward(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Run all steps from the states [G, H, C]. Returns the forecasts [G, T, C], or the last states."""
        for layer, state in zip(self.layers, states, strict=True):
            layer.start(state)
        steps = len(self.plan.reads_forecast)
        forecasts: list[Tensor] = []
        for t in range(steps):
            signal = self.frames[:, t]
            first = forecasts[-1] if self.plan.reads_forecast[t] else None
            for layer in self.layers:
                signal, first = layer.step(t, signal, first), None
            if self.readout is not None:
                forecasts.append(torch.baddbmm(self.readout[:, :, -1:], self.readout[:, :, :-1], signal))
        return [torch.cat(forecasts, 1)] if forecasts else [layer.after(steps - 1) for layer in self.layers]

    def backward(self, upstream: Sequence[Tensor], into: _Gradients) -> list[Tensor]:
        """Run the backward pass of all steps.

        Args:
            upstream: The gradients of the results of `forward`.
            into: The tensors that the gradients of frames, readout and weights are added to.

        Returns:
            The gradients of the states that the layers started from, [G, H, C] each.
        """
        layers, reads_forecast = self.layers, self.plan.reads_forecast
        if self.readout is None:
            # `step_back` overwrites the gradients that it gets.
            grads = [grad.clone() for grad in upstream]
        else:
            grads = [torch.zeros_like(layer.state[0]) for layer in layers]
        as_input: Tensor | None = None  # the gradient of a forecast as the input of the next step
        for t in reversed(range(len(reads_forecast))):
            if self.readout is not None:
                of_forecast = upstream[0][:, t : t + 1]
                of_forecast = of_forecast if as_input is None else of_forecast + as_input
                self._readout_back(layers[-1].after(t), of_forecast, grads[-1], into.readout)
            for i in reversed(range(len(layers))):
                if i:
                    # A layer above the first gives the gradients of all its inputs, the states of the layer
                    # below.
                    width = layers[i - 1].hidden
                else:
                    width = self.frames.shape[2] if into.frames is not None else int(reads_forecast[t])
                grads[i], below = layers[i].step_back(t, grads[i], width)
                if i and below is not None:
                    grads[i - 1] += below
            as_input = below[:, :1] if reads_forecast[t] and below is not None else None
            if into.frames is not None and below is not None:
                into.frames[:, t] = below
                if reads_forecast[t]:
                    # The forecast replaced the first input of the frame, so that has no gradient.
                    into.frames[:, t, 0] = 0
        for layer, of_state, of_inputs in zip(layers, into.of_state, into.of_inputs, strict=True):
            layer.weights_back(of_state, of_inputs)
        return grads

    def _readout_back(self, state: Tensor, grad: Tensor, of_state: Tensor, into: Tensor | None) -> None:
        """Run the backward pass of a forecast w h + b.

        Args:
            state: [G, H, C], h.
            grad: [G, 1, C], the gradient of the forecast.
            of_state: [G, H, C], to which the gradient of h is added.
            into: [G, 1, H+1], to which the gradient of [w; b] is added; None if it is not needed.
        """
        assert self.readout is not None
        of_state.addcmul_(self.readout[:, 0, :-1, None], grad)
        if into is not None:
            into[:, :, :-1].baddbmm_(grad, state.transpose(1, 2))
            into[:, :, -1:] += grad.sum(2, keepdim=True)
