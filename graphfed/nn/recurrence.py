"""Gated recurrent units run over time for many series at once, forward and backward written out.

    G sets of weights, C columns (series) of each, T steps, D inputs, H hidden

All steps of a block of series run before the next block's, so what a step writes the next one finds in the
cache, and a step of a block is two batched products and a few passes in place. Series lie in columns: every
gate is then a contiguous block of rows. With the inputs x and a one below the state h,

    a = M [h; x; 1]     rows r and z, and n: the part of the candidate that reads the state
    b = N [x; 1]        the part of the candidate that reads the inputs
    r, z = sigmoid(a_r), sigmoid(a_z);   c = tanh(b + r * a_n);   h' = c + z * (h - c)

so biases and inputs ride in the product of the state. Autograd would save a tensor for every operation here;
written out, a step keeps its state, gates and candidate, and no product is worked out twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["SERIES", "Cell", "unroll"]

#: Series of a block. Products at widths of 64 and 128 ran alike with 256 to 512 columns, and on two threads
#: about half as fast again as with all 26 496 of 207 clients' 128 windows.
SERIES = 512


@dataclass(frozen=True)
class Cell:
    """One layer's weights: state [G, 3H, H+D+1], the matrix M; inputs [G, H, D+1], the matrix N."""

    state: Tensor
    inputs: Tensor

    @property
    def hidden(self) -> int:
        """H."""
        return self.inputs.shape[1]


def unroll(
    cells: Sequence[Cell],
    states: Sequence[Tensor],
    frames: Tensor,
    readout: Tensor | None = None,
    own: Sequence[bool] = (),
    products: torch.dtype | None = None,
) -> list[Tensor]:
    """Run stacked layers over the frames [G, T, D, C], each from its state [G, H, C].

    Without a readout: every layer's last state. With a readout [G, 1, H+1] of [h; 1]: its forecasts
    [G, T, C] alone; where own[t] is true, the first input of step t is the forecast of step t-1 and not the
    frame's. Differentiable in all tensors. products: the dtype that matrix products are made in, the tensors'
    own if None."""
    plan = _Plan(len(cells), readout is not None, tuple(own) or (False,) * frames.shape[1], products)
    tensors = (frames, *([] if readout is None else [readout]), *states)
    tensors += tuple(w for cell in cells for w in (cell.state, cell.inputs))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Unrolled.apply(plan, *tensors))  # type: ignore[no-untyped-call]
    return _forward(plan, tensors, None)


@dataclass(frozen=True)
class _Plan:
    """What `unroll` was asked for, beside tensors: how many layers, whether there is a readout, which steps
    read their own forecast, the dtype of products."""

    layers: int
    reads_out: bool
    own: tuple[bool, ...]
    products: torch.dtype | None

    def parts(self, tensors: Sequence[Any]) -> tuple[Any, Any, list[Any], list[Any], list[Any]]:
        """The frames, the readout, and for every layer the states, the matrices M and the matrices N."""
        first = 1 + self.reads_out
        states, weights = list(tensors[first : first + self.layers]), list(tensors[first + self.layers :])
        return tensors[0], tensors[1] if self.reads_out else None, states, weights[::2], weights[1::2]


def _blocks(groups: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Groups and columns of blocks of at most SERIES series."""
    wide = max(1, min(columns, SERIES))
    deep = SERIES // wide
    for g in range(0, groups, deep):
        for c in range(0, columns, wide):
            yield slice(g, g + deep), slice(c, c + wide)


def _forward(plan: _Plan, tensors: Sequence[Tensor], kept: "list[_Block] | None") -> list[Tensor]:
    """The results of `unroll`; what every block leaves for the way back is appended to `kept`."""
    frames, readout, states, of_state, of_inputs = plan.parts(tensors)
    groups, steps, _, columns = frames.shape
    if plan.reads_out:
        found = [frames.new_empty(groups, steps, columns)]
    else:
        found = [torch.empty_like(state, memory_format=torch.contiguous_format) for state in states]
    for g, c in _blocks(groups, columns):
        cells = [Cell(m[g], n[g]) for m, n in zip(of_state, of_inputs, strict=True)]
        mine = None if readout is None else readout[g]
        block = _Block(plan, cells, mine, frames[g, :, :, c], kept is not None)
        results = block.forward([state[g, :, c] for state in states])
        for whole, part in zip(found, results, strict=True):
            whole[g, ..., c] = part
        if kept is not None:
            kept.append(block)
    return found


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
        frames, readout, states, of_state, of_inputs = plan.parts(grads)
        groups, _, _, columns = plan.parts(ctx.shapes)[0]
        # A block is let go as soon as its gradients are added; who goes back again makes them again.
        again: list[_Block] = []
        if ctx.blocks is None:
            _forward(plan, ctx.saved_tensors, again)
        blocks = (ctx.blocks or again)[::-1]
        ctx.blocks = None
        for g, c in _blocks(groups, columns):
            block = blocks.pop()
            into = _Gradients(
                None if frames is None else frames[g, :, :, c],
                None if readout is None else readout[g],
                [None if m is None else m[g] for m in of_state],
                [None if n is None else n[g] for n in of_inputs],
            )
            starts = block.backward([part[g, ..., c] for part in upstream], into)
            for whole, part in zip(states, starts, strict=True):
                if whole is not None:
                    whole[g, :, c] = part
        return None, *grads


@dataclass(frozen=True)
class _Gradients:
    """Where a block's gradients are added; None where none is asked for."""

    frames: Tensor | None
    readout: Tensor | None
    of_state: list[Tensor | None]
    of_inputs: list[Tensor | None]


class _Layer:
    """One layer on one block, and what its steps leave for the way back.

    state [.., G, H, C]; read [.., G, H+D+1, C]: the columns [h; x; 1] as products take them, which hold the
    state too where the dtype is the same; gates [.., G, 3H, C]: r, z and a_n; candidate [.., G, H, C]. There
    is a slot for every step, or one that all steps use where nothing is kept (two for what a step hands
    on)."""

    def __init__(self, cell: Cell, like: Tensor, slots: int, products: torch.dtype) -> None:
        groups, columns, hidden = like.shape[0], like.shape[-1], cell.hidden
        self.hidden = hidden
        self.of_state, self.of_inputs = cell.state.to(products), cell.inputs.to(products)
        # tanh(a) = 2 sigmoid(2a) - 1, and the sigmoid is several times faster: a is made twice as large.
        self.twice_of_inputs = 2 * self.of_inputs
        self.read = like.new_empty(slots + 1, groups, cell.state.shape[2], columns, dtype=products)
        self.read[:, :, -1] = 1
        self.state = self.read[:, :, :hidden]
        if products != like.dtype:
            self.state = like.new_empty(self.state.shape)
        self.gates = like.new_empty(slots, groups, 3 * hidden, columns)
        self.candidate = like.new_empty(slots, groups, hidden, columns)

    def start(self, state: Tensor) -> None:
        """The state [G, H, C] that the first step starts from."""
        self.state[0] = state

    def after(self, t: int) -> Tensor:
        """The state after step t, [G, H, C]."""
        return self.state[(t + 1) % len(self.state)]

    def step(self, t: int, inputs: Tensor, first: Tensor | None) -> Tensor:
        """Step t on the inputs [G, D, C], with `first` [G, 1, C] in the place of their first; the state
        after it."""
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
        _multiply(self.of_state, read, gates)
        _multiply(self.twice_of_inputs, read[:, hidden:], candidate)
        r, z, of_state = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
        gates[:, : 2 * hidden].sigmoid_()
        candidate.addcmul_(r, of_state, value=2).sigmoid_()
        torch.add(candidate.new_tensor(-1.0), candidate, alpha=2, out=candidate)
        return torch.lerp(candidate, state, z, out=self.after(t))

    def step_back(self, t: int, grad: Tensor, inputs: int) -> tuple[Tensor, Tensor | None]:
        """From the gradient of the state after step t, [G, H, C], which is written over: those of the state
        before it and of the first `inputs` inputs [G, inputs, C], None for 0. Those of a and b take the place
        of the step's gates and candidate, for `weights_back`."""
        hidden, state, gates, candidate = self.hidden, self.state[t], self.gates[t], self.candidate[t]
        both, of_state = gates[:, : 2 * hidden], gates[:, 2 * hidden :]
        r, z = both.chunk(2, 1)
        # h' = c + z (h - c)
        before = grad * z
        of_both = torch.empty_like(both)
        of_r, of_z = of_both.chunk(2, 1)
        torch.sub(state, candidate, out=of_z).mul_(grad)
        torch.ops.aten.tanh_backward.grad_input(grad.sub_(before), candidate, grad_input=candidate)
        torch.mul(candidate, of_state, out=of_r)
        torch.mul(candidate, r, out=of_state)
        torch.ops.aten.sigmoid_backward.grad_input(of_both, both, grad_input=both)
        gates, candidate = gates.to(self.read.dtype), candidate.to(self.read.dtype)
        _add_product(before, self.of_state[:, :, :hidden].transpose(1, 2), gates)
        if not inputs:
            return before, None
        of_read = torch.bmm(self.of_state[:, :, hidden : hidden + inputs].transpose(1, 2), gates)
        of_read = of_read.to(grad.dtype)
        _add_product(of_read, self.of_inputs[:, :, :inputs].transpose(1, 2), candidate)
        return before, of_read

    def weights_back(self, of_state: Tensor | None, of_inputs: Tensor | None) -> None:
        """Add the gradients of M and N, each by one product over all steps, when every step has gone back."""
        read = _side_by_side(self.read[:-1]).transpose(1, 2)
        if of_state is not None:
            _add_product(of_state, _side_by_side(self.gates).to(read.dtype), read)
        if of_inputs is not None:
            _add_product(of_inputs, _side_by_side(self.candidate).to(read.dtype), read[:, :, self.hidden :])


def _side_by_side(steps: Tensor) -> Tensor:
    """Columns of all steps, [T, G, F, C], next to each other: [G, F, T*C]."""
    return steps.permute(1, 2, 0, 3).flatten(2)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left @ right, written to `out`, whose dtype may be another."""
    if left.dtype == out.dtype:
        torch.bmm(left, right, out=out)
    else:
        out.copy_(torch.bmm(left, right))


def _add_product(whole: Tensor, left: Tensor, right: Tensor) -> None:
    """whole += left @ right, whose dtype may be another."""
    if left.dtype == whole.dtype:
        whole.baddbmm_(left, right)
    else:
        whole.add_(torch.bmm(left, right))


class _Block:
    """All layers on one block of series, over all steps."""

    def __init__(
        self, plan: _Plan, cells: Sequence[Cell], readout: Tensor | None, frames: Tensor, keep: bool
    ) -> None:
        slots = len(plan.own) if keep else 1
        products = plan.products or frames.dtype
        self.plan, self.frames, self.readout = plan, frames, readout
        self.layers = [_Layer(cell, frames, slots, products) for cell in cells]

    def forward(self, states: Sequence[Tensor]) -> list[Tensor]:
        """The forecasts [G, T, C] alone, or every layer's last state."""
        for layer, state in zip(self.layers, states, strict=True):
            layer.start(state)
        steps = len(self.plan.own)
        forecasts: list[Tensor] = []
        for t in range(steps):
            signal = self.frames[:, t]
            first = forecasts[-1] if self.plan.own[t] else None
            for layer in self.layers:
                signal, first = layer.step(t, signal, first), None
            if self.readout is not None:
                forecasts.append(torch.baddbmm(self.readout[:, :, -1:], self.readout[:, :, :-1], signal))
        return [torch.cat(forecasts, 1)] if forecasts else [layer.after(steps - 1) for layer in self.layers]

    def backward(self, upstream: Sequence[Tensor], into: _Gradients) -> list[Tensor]:
        """From the gradients of what `forward` gave: those of the states it started from. The others are
        added to `into`."""
        layers, own = self.layers, self.plan.own
        if self.readout is None:
            grads = [grad.clone() for grad in upstream]
        else:
            grads = [torch.zeros_like(layer.state[0]) for layer in layers]
        fed: Tensor | None = None  # the gradient of a forecast as the next step's input
        for t in reversed(range(len(own))):
            if self.readout is not None:
                of_forecast = upstream[0][:, t : t + 1]
                of_forecast = of_forecast if fed is None else of_forecast + fed
                self._readout_back(layers[-1].after(t), of_forecast, grads[-1], into.readout)
            for place in reversed(range(len(layers))):
                if place:
                    width = layers[place - 1].hidden
                else:
                    width = self.frames.shape[2] if into.frames is not None else int(own[t])
                grads[place], below = layers[place].step_back(t, grads[place], width)
                if place and below is not None:
                    grads[place - 1] += below
            fed = below[:, :1] if own[t] and below is not None else None
            if into.frames is not None and below is not None:
                into.frames[:, t] = below
                if own[t]:
                    into.frames[:, t, 0] = 0
        for layer, of_state, of_inputs in zip(layers, into.of_state, into.of_inputs, strict=True):
            layer.weights_back(of_state, of_inputs)
        return grads

    def _readout_back(self, state: Tensor, grad: Tensor, of_state: Tensor, into: Tensor | None) -> None:
        """Add what a gradient [G, 1, C] of w h + b gives to that of h [G, H, C], and to that of [w; b]."""
        assert self.readout is not None
        of_state.addcmul_(self.readout[:, 0, :-1, None], grad)
        if into is not None:
            into[:, :, :-1].baddbmm_(grad, state.transpose(1, 2))
            into[:, :, -1:] += grad.sum(2, keepdim=True)
