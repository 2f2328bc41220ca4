"""Measure CNFGNN's networks: a training step of 207 clients, and one of the server's graph network.

    client step    encode 12 steps, decode 12, mean squared error, gradients of all weights; 128 windows
    server step    the graph network on 207 nodes and 1722 edges, gradients of its weights and its input
    whole round    a round of the method on 128 windows of a generated road network: training of the sensors,
                   their average, encodings, training at the server in batches of 48, embeddings; no
                   evaluation

Each step is compared with plain matrix products of the same shapes and with a loop over clients. A peak is
the best rate of plain products of the shapes that the step uses: forward, and back to the left and the right
factor, for all rows at once. GFLOP/s count two operations for each multiplication of a matrix product that is
computed, and nothing else. The graph network computes fewer products than its equations contain, because
edges share the products of their nodes; the record also has the number that the equations contain.

Before measuring, in float64, stacked clients must give the gradients of separate torch.nn.GRU modules, and
the graph network those of its equations on every edge. OMP_NUM_THREADS must be at least --threads, because
it limits the threads of the products of a block."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from measure import add_common_options, assert_equal, finish, float64, load_average, ratio, summary
from torch import Tensor

from graphfed.data.datasets import load
from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import make_time_split
from graphfed.federation import CLIENTS, SERVER
from graphfed.federation.series import SensorData, make_network, make_series
from graphfed.methods.base import Task
from graphfed.methods.cnfgnn import graph_network
from graphfed.methods.cnfgnn.method import METHOD as CNFGNN
from graphfed.methods.tasks import FORECASTING
from graphfed.nn import gru
from graphfed.nn.edges import Edges, make_edges
from graphfed.nn.gru import Forecaster
from graphfed.nn.precision import has_fast_bfloat16
from graphfed.runtime.local import stacked
from graphfed.tasks.registry import default_settings

STEPS = 12
FORECASTER = Forecaster()
#: The server's network, the paper's.
NETWORK = "graph_network"
Weights = Mapping[str, Tensor]


# ---- clients


class Clients:
    """K clients with W windows of random numbers each, and one set of weights for all or one for each."""

    def __init__(self, clients: int, windows: int, shared: bool) -> None:
        torch.manual_seed(0)
        self.clients, self.windows = clients, windows
        self.x = torch.randn(clients, windows, STEPS, FORECASTER.inputs)
        self.embedding = torch.randn(clients, windows, FORECASTER.decoder - FORECASTER.encoder)
        self.later = torch.rand(1, windows, STEPS - 1, FORECASTER.inputs - 1)
        self.truth = torch.randn(clients, windows, STEPS)
        drawn = gru.init(0, FORECASTER)
        self.weights = drawn if shared else {k: w.repeat(clients, *[1] * w.dim()) for k, w in drawn.items()}

    def losses(self, weights: Weights, few: slice, products: torch.dtype | None) -> Tensor:
        x = self.x[few]
        state = torch.cat([gru.encode(weights, x, products=products), self.embedding[few]], -1)
        forecast = gru.decode(weights, state, x[:, :, -1], self.later, STEPS, products=products)
        return (forecast - self.truth[few]).square().mean((1, 2))

    def at_once(self, products: torch.dtype | None = None) -> dict[str, Tensor]:
        """Return the gradients by autograd, through all clients together."""
        leaves = {k: w.detach().requires_grad_() for k, w in self.weights.items()}
        total = self.losses(leaves, slice(None), products).sum()
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))

    def few_at_a_time(self, products: torch.dtype | None = None) -> dict[str, Tensor]:
        def losses(weights: Weights, few: slice) -> Tensor:
            return self.losses(weights, few, products)

        return gru.weight_gradients(self.weights, losses, self.clients, self.windows)[1]

    @property
    def flops(self) -> int:
        f = FORECASTER
        encoder, decoder = (3 * h * (h + f.inputs) for h in (f.encoder, f.decoder))
        # Three products of the same size: forward, and back to both factors.
        return 3 * 2 * self.clients * self.windows * STEPS * (encoder + decoder + f.decoder)

    def peak(self, dtype: torch.dtype) -> tuple[Callable[[], None], int]:
        """Return plain products of the state, of both widths, as often as the step needs each; and their
        operations."""
        shared = self.weights["readout.bias"].dim() == 1
        groups, columns = (1, self.clients * self.windows) if shared else (self.clients, self.windows)
        runs, flops = [], 0
        for hidden in (FORECASTER.encoder, FORECASTER.decoder):
            runs.append(plain_products((groups, 3 * hidden, hidden, columns), dtype))
            flops += STEPS * 3 * 2 * groups * columns * 3 * hidden * hidden

        def run() -> None:
            for once in runs:
                for _ in range(STEPS):
                    once()

        return run, flops


def plain_products(shape: tuple[int, int, int, int], dtype: torch.dtype) -> Callable[[], None]:
    """Compute G products [M, N] x [N, C] and the two products of their backward pass."""
    groups, m, n, columns = shape
    left, right = torch.randn(groups, m, n).to(dtype), torch.randn(groups, n, columns).to(dtype)
    out, of_left, of_right = (torch.empty_like(x) for x in (left @ right, left, right))

    def run() -> None:
        torch.bmm(left, right, out=out)
        torch.bmm(left.transpose(1, 2), out, out=of_right)
        torch.bmm(out, right.transpose(1, 2), out=of_left)

    return run


class OneClient(torch.nn.Module):
    """The forecaster, written in plain PyTorch for one client."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        f = FORECASTER
        self.encoder = torch.nn.GRU(f.inputs, f.encoder, batch_first=True)
        self.decoder = torch.nn.GRU(f.inputs, f.decoder, batch_first=True)
        self.readout = torch.nn.Linear(f.decoder, 1)
        with torch.no_grad():
            for own, torch_name in self.names().items():
                self.get_parameter(torch_name).copy_(weights[own].t())

    @staticmethod
    def names() -> dict[str, str]:
        """Return our names of the weights, and those of torch."""
        names = {"input_weight": "weight_ih", "hidden_weight": "weight_hh"}
        names |= {"input_bias": "bias_ih", "hidden_bias": "bias_hh"}
        parts = {f"{p}.0.{a}": f"{p}.{b}_l0" for p in ("encoder", "decoder") for a, b in names.items()}
        return parts | {f"readout.{name}": f"readout.{name}" for name in ("weight", "bias")}

    def forward(self, x: Tensor, embedding: Tensor, later: Tensor) -> Tensor:
        _, h = self.encoder(x)
        h, frame, forecasts = torch.cat([h, embedding[None]], 2), x[:, -1:], []
        for t in range(STEPS):
            out, h = self.decoder(frame, h)
            forecasts.append(self.readout(out)[:, :, 0])
            if t < STEPS - 1:
                frame = torch.cat([forecasts[-1][:, :, None], later[:, t : t + 1]], 2)
        return torch.cat(forecasts, 1)


class Loop:
    """The same step as in `Clients`, one module after the other."""

    def __init__(self, clients: Clients) -> None:
        self.data = clients
        own = clients.weights["readout.bias"].dim() == 2
        self.modules = [
            OneClient({k: w[i] if own else w for k, w in clients.weights.items()})
            for i in range(clients.clients)
        ]

    def step(self) -> None:
        for i, module in enumerate(self.modules):
            module.zero_grad()
            forecast = module(self.data.x[i], self.data.embedding[i], self.data.later[0])
            torch.nn.functional.mse_loss(forecast, self.data.truth[i]).backward()

    def gradients(self) -> dict[str, Tensor]:
        found = {}
        for own, torch_name in OneClient.names().items():
            parts = [module.get_parameter(torch_name).grad for module in self.modules]
            found[own] = torch.stack([part.t() for part in parts if part is not None])
        return found


# ---- the server


class Server:
    """The graph network on random features of a random road graph with METR-LA's number of edges."""

    def __init__(self, nodes: int, edges: int, windows: int, widths: tuple[int, int, int]) -> None:
        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        code = rng.choice(nodes * (nodes - 1), edges - nodes, replace=False)
        row, column = code // (nodes - 1), code % (nodes - 1)
        column = column + (column >= row)  # no self loop among these
        row, column = (np.concatenate([x, np.arange(nodes)]) for x in (row, column))
        weight = np.concatenate([rng.random(edges - nodes) + 0.1, np.ones(nodes)]).astype(np.float32)
        self.edges: Edges = make_edges(sp.csr_matrix((weight, (row, column)), shape=(nodes, nodes)))
        self.widths = widths
        self.weights = graph_network.init(0, *widths)
        self.v = torch.randn(nodes, windows, widths[0])
        self.upstream = torch.randn(nodes, windows, widths[0])

    def step(
        self,
        products: torch.dtype | None = None,
        network: Callable[..., Tensor] = graph_network.graph_network,
    ) -> dict[str, Tensor]:
        leaves = {k: w.detach().requires_grad_() for k, w in self.weights.items()}
        leaves["v"] = self.v.detach().requires_grad_()
        out = network({k: w for k, w in leaves.items() if k != "v"}, leaves["v"], self.edges, products)
        total = (out * self.upstream).sum()
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))

    @property
    def flops(self) -> dict[str, int]:
        """Return the operations of the products that are computed, and of those that the equations
        contain."""
        hidden, width, out = self.widths
        edge, node, spelt_edge, spelt_node = 0, 0, 0, 0
        for layer in range(2):
            h = hidden + layer * out
            # For each edge: the second layer of its MLP, and the input of the next layer of the network.
            edge += (1 + layer) * width * width
            mlp = width * width + width * out
            # For each node: products for its edges, both ways; the last linear map of the sums; its MLP.
            node += 2 * h * width + width * out + (h + out) * width + mlp
            spelt_edge += (3 * h + 1 + layer * out) * width + mlp
            spelt_node += (h + out + h) * width + mlp
        node += (hidden + 2 * out) * hidden
        spelt_node += (hidden + 2 * out) * hidden
        nodes, windows = self.v.shape[:2]
        return {
            "carried out": 6 * windows * (self.edges.count * edge + nodes * node),
            "of the equations": 6 * windows * (self.edges.count * spelt_edge + nodes * spelt_node),
        }

    def peak(self, dtype: torch.dtype) -> tuple[Callable[[], None], int]:
        rows, width = self.edges.count * self.v.shape[1], self.widths[1]
        return plain_products((1, width, width, rows), dtype), 6 * rows * width * width


def on_every_edge(weights: Weights, v: Tensor, edges: Edges, products: None) -> Tensor:
    """Compute the graph network by its equations, with the inputs of every edge."""

    def mlp(path: str, *parts: Tensor) -> Tensor:
        x = torch.cat(parts, -1)
        for depth in range(3):
            x = x @ weights[f"{path}.{depth}.weight"] + weights[f"{path}.{depth}.bias"]
            x = x.relu() if depth < 2 else x
        return x

    e = edges.weight.to(v.dtype)[:, None, None].expand(-1, v.shape[1], 1)
    u = torch.zeros_like(v[0])
    for layer in range(2):
        path, each = f"layers.{layer}", u.expand(edges.count, *u.shape)
        new_e = mlp(f"{path}.edge", v[edges.receiver], v[edges.sender], e, each)
        received = v.new_zeros(len(v), *new_e.shape[1:]).index_add(0, edges.receiver, new_e)
        new_v = mlp(f"{path}.node", v, received, u.expand(len(v), *u.shape))
        new_u = mlp(f"{path}.global", new_v.sum(0), new_e.sum(0), u)
        v, e, u = torch.cat([new_v, v], -1), torch.cat([new_e, e], -1), torch.cat([new_u, u], -1)
    return v @ weights["out.weight"] + weights["out.bias"] + 0 * u.sum()


# ---- what is measured


def check() -> dict[str, float]:
    """Return the largest differences between both sides, in float64."""
    with float64():
        clients = Clients(5, 7, shared=False)
        loop = Loop(clients)
        loop.step()
        stacked = clients.at_once()
        gaps = {"stacked and a loop of torch.nn.GRU": assert_equal("stacked", stacked, loop.gradients())}
        few = clients.few_at_a_time()
        gaps["a few clients at a time and all at once"] = assert_equal("a few clients", few, stacked)
        server = Server(20, 60, 3, (8, 16, 12))
        every = server.step(network=on_every_edge)
        gaps["the graph network and its equations"] = assert_equal("graph network", server.step(), every)
    return gaps


def in_turns(cases: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[list[float]]]:
    """Return the seconds of every case in every repeat, after one run that is not timed."""
    times: dict[str, list[list[float]]] = {name: [] for name in cases}
    for repeat in range(repeats + 1):
        for name, run in cases.items():
            began = time.perf_counter()
            run()
            if repeat:
                times[name].append([time.perf_counter() - began])
    return times


def case_rows(
    times: Mapping[str, list[list[float]]], flops: Mapping[str, int], pairs: Mapping[str, str]
) -> dict[str, Any]:
    """Return the seconds and GFLOP/s of every case, and the ratio of a step's rate to its peak."""
    rows: dict[str, Any] = {}
    for name, found in times.items():
        seconds = summary([s for repeat in found for s in repeat])
        rows[name] = {"seconds": seconds}
        if name in flops:
            rows[name]["gflops"] = round(flops[name] / seconds["min"] / 1e9, 1)
        if name in pairs:
            rate, peak = (flops[x] / min(s for r in times[x] for s in r) for x in (name, pairs[name]))
            rows[name]["share_of_peak"] = round(rate / peak, 2)
        print(f"{name}: {rows[name]}", file=sys.stderr)
    return rows


def precisions() -> dict[str, torch.dtype | None]:
    """Return the dtypes in which this processor computes products fast."""
    return {"float32": None, **({"bfloat16": torch.bfloat16} if has_fast_bfloat16("cpu") else {})}


def client_step(clients: int, windows: int, repeats: int) -> dict[str, Any]:
    """Measure shared and per-client weights, both precisions, and the loop, in turns."""
    cases: dict[str, Callable[[], object]] = {}
    flops, pairs = {}, {}
    loop = Loop(Clients(clients, windows, shared=False))
    cases["loop over clients"] = loop.step
    flops["loop over clients"] = loop.data.flops
    for shared, kind in ((True, "shared weights"), (False, "weights of each")):
        data = Clients(clients, windows, shared)
        for precision, products in precisions().items():
            peak, count = data.peak(products or torch.float32)
            top = f"{kind}, {precision}: plain products"
            cases[top], flops[top] = peak, count
            for way, step in (("all at once", data.at_once), ("a few at a time", data.few_at_a_time)):
                name = f"{kind}, {precision}: {way}"
                cases[name] = lambda step=step, products=products: step(products)
                flops[name], pairs[name] = data.flops, top
    times = in_turns(cases, repeats)
    found = case_rows(times, flops, pairs)
    loops = times["loop over clients"]
    return {"cases": found, "ratios": {f"{name} / loop": ratio(times[name], loops) for name in pairs}}


def server_step(windows: int, repeats: int, nodes: int = 207, edges: int = 1722) -> dict[str, Any]:
    """Measure the graph network in both precisions, plain products, and its equations on every edge."""
    server = Server(nodes, edges, windows, (64, 256, 128))
    spelt, every = server.flops["of the equations"], "equations on every edge"
    cases: dict[str, Callable[[], object]] = {every: lambda: server.step(network=on_every_edge)}
    flops, pairs = {every: spelt}, {}
    for precision, products in precisions().items():
        peak, count = server.peak(products or torch.float32)
        top = f"{precision}: plain products"
        cases[top], flops[top] = peak, count
        cases[precision] = lambda products=products: server.step(products)
        flops[precision], pairs[precision] = server.flops["carried out"], top
    times = in_turns(cases, repeats)
    found = case_rows(times, flops, pairs)
    for precision in pairs:
        best = min(s for r in times[precision] for s in r)
        found[precision]["gflops_of_the_equations"] = round(spelt / best / 1e9, 1)
    return {
        "cases": found,
        "ratios": {f"{name} / {every}": ratio(times[name], times[every]) for name in pairs},
    }


class Rounds:
    """Set up the method on `sensors` of a generated road network, with the given number of training
    windows."""

    def __init__(self, sensors: int, windows: int, precision: str) -> None:
        whole = load("roads", sensors=sensors, weeks=1)
        assert isinstance(whole, Sensors)
        # 70 % of all windows are for training.
        steps = slice(0, round(windows / 0.7) + 2 * STEPS - 1)
        cut = replace(whole, readings=whole.readings[steps], missing=whole.missing[steps])
        split = make_time_split(cut, "default", STEPS, STEPS)
        assert split.train == windows, (split.train, windows)
        self.edges = cut.adjacency.nnz
        self.config = CNFGNN.configure({"network": NETWORK, "precision": precision}, default_settings(CNFGNN))
        self.fed = stacked(sensors)
        series = self.fed.locate(CLIENTS, "series", [make_series(cut, split, range(sensors))])
        data = SensorData(series, self.fed.locate(SERVER, "network", [make_network(cut, split)]))
        self.state = CNFGNN.setup(self.fed, data, Task(1, 0, FORECASTING), self.config)
        self.number = 0

    def step(self) -> None:
        self.number += 1
        self.state = CNFGNN.round(self.fed, self.state, self.config, self.number)


def whole_rounds(sensors: int, windows: int, repeats: int) -> dict[str, Any]:
    """Return the seconds of a round of the method, after one warm-up round."""
    runs = {precision: Rounds(sensors, windows, precision) for precision in precisions()}
    times = in_turns({precision: run.step for precision, run in runs.items()}, repeats)
    edges = next(iter(runs.values())).edges
    seconds = {name: summary([s for repeat in each for s in repeat]) for name, each in times.items()}
    return {"edges": edges, "seconds": seconds}


def peak_mb() -> float:
    """Return the peak memory of this program (a child's ru_maxrss begins at that of its parent process)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("error: /proc/self/status has no VmHWM; memory is measured on Linux only")


def memory_of_a_round(sensors: int, windows: int) -> None:
    """Print the peak memory of the process over a whole round, in MB."""
    Rounds(sensors, windows, "float32").step()
    print(peak_mb())


def memory(clients: int, windows: int, few: bool) -> None:
    """Print the peak memory of the process over one client step with separate weights, in MB above its
    inputs."""
    Clients(2, windows, shared=False).at_once()
    data = Clients(clients, windows, shared=False)
    before = peak_mb()
    (data.few_at_a_time if few else data.at_once)()
    print(peak_mb() - before)


def memory_by_clients(counts: Sequence[int], windows: int) -> list[dict[str, Any]]:
    """Run `memory` in a process for each number of clients and each way."""
    rows = []
    for count in counts:
        row: dict[str, Any] = {"clients": count}
        for way, few in (("a few at a time", True), ("all at once", False)):
            command = [sys.executable, __file__, "--memory", str(count), str(windows), str(int(few))]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row[f"{way}, MB"] = round(float(done.stdout))
        command = [sys.executable, __file__, "--memory-of-a-round", str(count), str(windows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row["a whole round, whole process, MB"] = round(float(done.stdout))
        print(row, file=sys.stderr)
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "cnfgnn")
    parser.add_argument("--memory", nargs=3, type=int, help=argparse.SUPPRESS)  # one measurement of a process
    parser.add_argument("--memory-of-a-round", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.memory:
        return memory(options.memory[0], options.memory[1], bool(options.memory[2]))
    if options.memory_of_a_round:
        return memory_of_a_round(*options.memory_of_a_round)
    if int(os.environ.get("OMP_NUM_THREADS", options.threads)) < options.threads:
        sys.exit(f"error: OMP_NUM_THREADS is below --threads={options.threads}; unset it")
    began, load_before = time.perf_counter(), load_average()
    clients, windows, repeats = (6, 8, 2) if options.tiny else (207, 128, 5 if options.full else 3)
    gaps = check()
    content = {
        "differences": gaps,
        "network": NETWORK,
        "clients": clients,
        "windows": windows,
        "client_step": client_step(clients, windows, repeats),
        "server_step": server_step(windows, repeats, *((12, 40) if options.tiny else ())),
        "whole_round": whole_rounds(clients, 14 if options.tiny else windows, repeats),
        "memory": memory_by_clients(
            (6, 12) if options.tiny else (207, 325, 2000), 14 if options.tiny else 32
        ),
    }
    finish(options.out, began, load_before, content)


if __name__ == "__main__":
    main()
