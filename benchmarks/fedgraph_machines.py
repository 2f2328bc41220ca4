"""FedGraph's sampling policies in wall seconds of a federation whose clients have unequal machines.

The server and each client have a process of their own, as with `--runtime processes`. All are on this
machine; waiting makes the clients' machines unequal (`SlowMachine`). In a round, before a client sends a
message, its process sleeps as long as a slower machine would still need: a multiple of the processor time
that it has used since its last message, plus the time of the received and sent bytes over a bandwidth, less
the time that has gone by without waiting for messages. Multiples and bandwidths of clients have the ratios
that FedGraph's time model draws; the fastest processor is `SLOWDOWN` times as slow as this one, so that a
core has time for all processes and their sleep decides how long a round takes. The server is not slowed down,
and nothing is in evaluations, which are not timed.

A round's wall seconds are those between its begin and its end at the server. Policies take turns within each
seed. FedGraph's policy is learned first, on the same clients, partition and split and in modelled time, as in
the reproduction's rows with few episodes. Targets are the reproduction's: 75 percent
on Cora and ten points below the best on other data, and one point below the best, on the validation nodes of
the same split; the best is that of central training on Cora and CiteSeer, and of full batches on the other
data."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed
from graphfed.federation import Federation
from graphfed.federation.link import SERVER_INDEX, Link
from graphfed.methods.base import State, Task
from graphfed.methods.fedgraph.config import FedGraphConfig, ModelledTime
from graphfed.methods.fedgraph.method import METHOD
from graphfed.methods.fedgraph.policy.learning import learn_policy
from graphfed.methods.fedgraph.round_time import MEASURED_ROUNDS, REPEATS
from graphfed.random import fold, uniform
from graphfed.runs.config import make_config
from graphfed.runs.train import train
from graphfed.runtime.processes import Workers
from graphfed.studies.plan import InputCache
from graphfed.tasks.registry import get_task

CLIENTS = 4
#: How many times as slow as a core of this machine the fastest client is, and the factor by which bandwidths
#: are below those of the time model.
SLOWDOWN = 8.0
PAPER = {"preset": "paper", "partition_seed": 0, "split_seed": 0}
OPTIONS: dict[str, Any] = {
    "clients": CLIENTS,
    "partition": "overlapping",
    "split": "random_plain:0.6,0.2,0.2",
}
CENTRAL = {"optimizer": "adam", "lr": 0.01, "local_steps": 1}
POLICIES: dict[str, dict[str, Any]] = {
    "balanced": {"policy": "balanced", "clock": "wall"},
    "full": {"policy": "full"},
    "graphsage": {"policy": "graphsage"},
    "fastgcn": {"policy": "fastgcn"},
}
#: What is learned for the clients of a data set, as the reproduction does (`BALANCED_POLICIES`).
EPISODES, LEARNING_ROUNDS = 10, 100


@dataclass(frozen=True)
class Case:
    """A data set and how its runs are made.

    Attributes:
        settings: Of FedGraph, data and partition.
        rounds: Of full batches.
        others: Rounds of the other policies; None for as many.
        every: Rounds from one evaluation to the next.
        early: The first target; None for `LESS_EARLY` below the best.
        is_best_central: Whether the targets follow central training; otherwise full batches.
        probability: Of the tuned constant, which takes a twentieth of the training nodes. The bandit of an
            earlier version has found it among four for these clients, as the record says.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    rounds: int = 120
    others: int | None = None
    every: int = 2
    early: float | None = None
    is_best_central: bool = False
    probability: float = 1.0


ALL_DEGREES: dict[str, Any] = {"first_degrees": "all"}
ONE_COPY: dict[str, Any] = {"partition.copies": "one", "first_degrees": "internal"}
DATA = {
    "cora": Case(ALL_DEGREES, early=0.75, is_best_central=True),
    "citeseer": Case(ALL_DEGREES, rounds=60, is_best_central=True),
    "dblp": Case(ONE_COPY, rounds=130, others=200),
    "social": Case({**ONE_COPY, "data.num_nodes": 100_000}, rounds=110, others=220, every=5, probability=0.5),
}
TINY_ROUNDS = MEASURED_ROUNDS * REPEATS + 2
TINY = Case({**ONE_COPY, "data.num_nodes": 200, "hidden": 4}, rounds=TINY_ROUNDS)
#: How far the targets are below the best.
LESS_EARLY, LESS = 0.1, 0.01
#: What is kept of what `balanced` has measured and decided.
KEPT = ("fractions", "requests", "seconds", "next", "next_requests")


# ---- in the processes


class SlowMachine:
    """The link of a client with a slower processor and network than this machine has.

    While a client waits for a core, its own slow machine would have computed. So what else this machine does
    hardly matters, as long as a client finds a core within the time that its slow machine needs.

    Args:
        link: The link that sends and receives.
        factor: How many times as slow the processor is.
        bandwidth: Bytes per second.
    """

    def __init__(self, link: Link, factor: float, bandwidth: float) -> None:
        self._link, self._factor, self._bandwidth = link, factor, bandwidth
        self.is_slow = False
        self._processor, self._clock, self._waited, self._received = 0.0, 0.0, 0.0, 0

    def begin(self) -> None:
        """Count from here, and be slow."""
        self.is_slow, self._waited, self._received = True, 0.0, 0
        self._processor, self._clock = time.process_time(), time.perf_counter()

    def send(self, to: int, key: str, message: bytes) -> None:
        """Send a message when this client's machine would have computed and sent it."""
        if self.is_slow:
            computed = self._factor * (time.process_time() - self._processor)
            transferred = (self._received + len(message)) / self._bandwidth
            spent = time.perf_counter() - self._clock - self._waited
            time.sleep(max(0.0, computed + transferred - spent))
            self.begin()
        self._link.send(to, key, message)

    def recv(self, sender: int, key: str) -> bytes:
        """Wait for a message. The time to receive it passes before the next one is sent."""
        began = time.perf_counter()
        message = self._link.recv(sender, key)
        self._waited += time.perf_counter() - began
        self._received += len(message)
        return message


def train_slowly(fed: Federation, arguments: Mapping[str, Any], log: Callable[[Any], None]) -> dict[str, Any]:
    """Train in one process of the federation.

    Args:
        fed: The federation, with this process's client or the server.
        arguments: config, task, data (a path; None for the server), machine (factor and bandwidth).
        log: Not used.

    Returns:
        At the server, as JSON: history, seconds of every round, and what `balanced` has found (`KEPT`).
    """
    assert fed.link is not None
    machine = SlowMachine(fed.link, *arguments["machine"])
    fed = Federation(fed.workers, here=fed.here, server_here=fed.server_is_here, link=machine)
    kind = get_task("classification").data
    here = [kind.load(Path(arguments["data"]))] if fed.here else []
    seconds: list[float] = []
    found: dict[str, Any] = {}

    def timed_round(fed: Federation, state: State, config: FedGraphConfig, number: int) -> State:
        if fed.here:
            machine.begin()
        began = time.perf_counter()
        state = METHOD.round(fed, state, config, number)
        seconds.append(time.perf_counter() - began)
        machine.is_slow = False
        for part in fed.local_parts(state.values["balance"]) if config.sampling.policy == "balanced" else ():
            found.update({name: part[name].tolist() for name in KEPT})
        return state

    outcome = train(
        fed,
        replace(METHOD, round=timed_round),
        kind.located(fed, here, []),
        Task(**arguments["task"]),
        METHOD.configure(arguments["config"]),
    )
    return {"of_server": json.dumps([outcome.history, seconds, found]) if fed.server_is_here else None}


# ---- the caller


def machines() -> list[tuple[float, float]]:
    """Return each client's factor and bandwidth, by the draws of the time model."""
    default, clients = ModelledTime(), torch.arange(CLIENTS)
    draws = {
        purpose: default.spread ** (2 * uniform(fold(0, "fedgraph", purpose), clients)[:, 0] - 1)
        for purpose in ("speed", "bandwidth")
    }
    factors = SLOWDOWN * draws["speed"].max() / draws["speed"]
    return list(
        zip(factors.tolist(), (default.bandwidth / SLOWDOWN * draws["bandwidth"]).tolist(), strict=True)
    )


def learned(data: str, case: Case, rounds: int, place: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Learn FedGraph's policy in a folder, or go on there.

    Args:
        data: The data set.
        case: Its runs.
        rounds: The rounds of an episode.
        place: The folder.

    Returns:
        Its settings, and what the record says of it.
    """
    policy = learn_policy(
        **OPTIONS,
        data=data,
        rounds=rounds,
        threads=1,
        episodes=EPISODES,
        settings={**PAPER, **case.settings},
        out=place / f"{data}-ddpg",
    )
    spent = sum(policy.seconds[part] for part in ("rounds", "evaluation", "learning"))
    print(f"{data}: learned in {spent:.0f} s", file=sys.stderr)
    settings = {"policy": "ddpg", "policy_file": str(policy.file.resolve())}
    return settings, {"episodes": len(policy.episodes), "rounds": rounds, "seconds": spent, **policy.details}


def run(
    running: Workers, folder: Path, config: Any, inputs: Any, each: Sequence[tuple[float, float]]
) -> tuple[list[Any], ...]:
    """Return history, seconds of every round, and what `balanced` has found, of a run in processes."""
    common = {"config": METHOD.tree.listed(config.settings), "task": asdict(inputs.task(config.task))}
    arguments: dict[int, dict[str, Any]] = {SERVER_INDEX: {**common, "data": None, "machine": (1.0, 1e12)}}
    kind = get_task("classification").data
    for k, part in enumerate(inputs.parts(config, running.workers)):
        path = folder / f"{k}.safetensors"
        kind.save(part, path)
        arguments[k] = {**common, "data": str(path), "machine": each[k]}
    results = running.run("fedgraph_machines:train_slowly", arguments)
    return tuple(json.loads(results[SERVER_INDEX]["of_server"]))


def check(running: Workers, folder: Path, options: Mapping[str, Any], each: Any, cache: InputCache) -> None:
    """Check that slow machines and this one in a single process compute the same."""
    config = make_config("fedgraph", **options)
    history, *_ = run(running, folder, config, cache.get(config), each)
    together = graphfed.run("fedgraph", **options, out=folder / "together")
    assert together.rounds == len(history)
    lines = (folder / "together" / "metrics.jsonl").read_text().splitlines()
    for one, other in zip(history[1:], map(json.loads, lines[1:]), strict=True):
        assert abs(one["facts"]["modelled_seconds"] / other["facts"]["modelled_seconds"] - 1) < 1e-9
        assert bool(one["val"]) == bool(other["val"])
        assert not one["val"] or abs(best_of([one]) - best_of([other])) < 0.01


def bests(data: str, case: Case, seeds: Sequence[int]) -> list[float]:
    """Return the best validation accuracy of what the targets follow, for each seed."""
    own = {key: value for key, value in case.settings.items() if key in ("data.num_nodes", "hidden")}
    method, settings = "fedgraph", {**PAPER, **case.settings, **POLICIES["full"]}
    if case.is_best_central:
        method, settings = "central", {**PAPER, **own, **CENTRAL}
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            options: dict[str, Any] = {**OPTIONS, "data": data, "rounds": case.rounds, "seed": seed}
            graphfed.run(method, settings={**settings, "eval_every": case.every}, out=place, **options)
            lines = map(json.loads, (place / "metrics.jsonl").read_text().splitlines())
            found.append(max(line["val"]["accuracy"] for line in lines if line["val"]))
    return found


def times_to(target: float, history: Sequence[Mapping[str, Any]], ends: Sequence[float]) -> dict[str, Any]:
    """Return the wall and modelled seconds, and the rounds, until an evaluation reaches the target."""
    for line, end in zip(history, ends, strict=True):
        if line["val"] and line["val"]["accuracy"] >= target:
            return {
                "wall": end,
                "modelled": line["facts"]["modelled_seconds"],
                "rounds": line["round"],
            }
    return {"wall": None, "modelled": None, "rounds": None}


def mean(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean, deviation and values over the seeds; no mean unless every seed has a value."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {"mean": None, "std": None, "values": list(values), "reached": len(known)}
    of_all = torch.tensor(known, dtype=torch.float64)
    deviation = float(of_all.std()) if len(known) > 1 else 0.0
    return {"mean": float(of_all.mean()), "std": deviation, "values": known, "reached": len(known)}


def measure(
    data: str,
    case: Case,
    seeds: Sequence[int],
    place: Path,
    *,
    learning_rounds: int,
    save: Callable[[dict[str, Any]], None],
) -> None:
    """Measure every policy on a data set, and save what was found after each seed."""
    options: dict[str, Any] = {**OPTIONS, "data": data}
    own: dict[str, Any] = {**PAPER, "eval_every": case.every, **case.settings}
    ddpg, about = learned(data, case, learning_rounds, place)
    tuned = {"policy": "constant", "batch_fraction": 0.05, "probability": case.probability}
    # "bandit" is the name of the tuned constant in the record.
    policies = {**POLICIES, "ddpg": ddpg, "bandit": tuned}
    of_seeds = bests(data, case, seeds)
    best = sum(of_seeds) / len(of_seeds)
    targets = {"early": case.early or best - LESS_EARLY, "near": best - LESS}
    each, cache = machines(), InputCache()
    runs: dict[str, list[tuple[list[Any], ...]]] = {name: [] for name in policies}
    with Workers([[k] for k in range(CLIENTS)]) as running, tempfile.TemporaryDirectory() as folder:
        few = {**options, "rounds": 1 + case.every, "seed": 0, "settings": {**own, **POLICIES["full"]}}
        check(running, Path(folder), few, each, cache)
        for done, seed in enumerate(seeds, 1):
            for name, settings in policies.items():
                rounds = case.rounds if name == "full" else case.others or case.rounds
                chosen = {**own, **settings}
                config = make_config("fedgraph", seed=seed, rounds=rounds, settings=chosen, **options)
                runs[name].append(run(running, Path(folder), config, cache.get(config), each))
                spent = sum(runs[name][-1][1])
                print(f"{data}, seed {seed}, {name}: {spent:.1f} s", load_average(), file=sys.stderr)
            save(
                {
                    "targets": targets,
                    "seeds": list(seeds[:done]),
                    "learned": {"ddpg": about},
                    "policies": figures(runs, targets, policies),
                }
            )


def figures(
    runs: Mapping[str, Sequence[tuple[list[Any], ...]]],
    targets: Mapping[str, float],
    policies: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the figures of every policy over its seeds."""
    found: dict[str, Any] = {}
    for name, of_seeds in runs.items():
        reached: dict[str, list[dict[str, Any]]] = {target: [] for target in targets}
        for history, seconds, _ in of_seeds:
            ends = torch.tensor(seconds, dtype=torch.float64).cumsum(0).tolist()
            for target, score in targets.items():
                reached[target].append(times_to(score, history, ends))
        # The rounds that `balanced` measures differ from its later ones.
        later = slice(len(of_seeds[0][1]) // 2, None)
        found[name] = {
            "settings": {key: value for key, value in policies[name].items() if key != "policy_file"},
            "number_of_rounds": len(of_seeds[0][1]),
            "accuracy": mean([best_of(history) for history, *_ in of_seeds]),
            "round": mean([float(torch.tensor(seconds[later]).median()) for _, seconds, _ in of_seeds]),
            "modelled_round": mean([modelled_round(history[later]) for history, *_ in of_seeds]),
            "to": {
                target: {key: mean([each[key] for each in times]) for key in ("wall", "modelled", "rounds")}
                for target, times in reached.items()
            },
            "balance": [balance for *_, balance in of_seeds if balance],
        }
    for of_policy in found.values():
        of_policy["relative"] = {
            target: {key: _ratio(of_policy, found["balanced"], target, key) for key in ("wall", "modelled")}
            for target in targets
        }
    return found


def best_of(history: Sequence[Mapping[str, Any]]) -> float:
    """Return the best accuracy on the validation nodes."""
    return max(float(line["val"]["accuracy"]) for line in history if line["val"])


def modelled_round(history: Sequence[Mapping[str, Any]]) -> float:
    """Return the modelled seconds of a round, mean over all but the first."""
    first, last = (history[n]["facts"]["modelled_seconds"] for n in (0, -1))
    return float(last - first) / (len(history) - 1)


def _ratio(one: Mapping[str, Any], other: Mapping[str, Any], target: str, key: str) -> float | None:
    """Return by which factor a policy needs longer than another, mean over mean."""
    means = [each["to"][target][key]["mean"] for each in (one, other)]
    return None if None in means else means[0] / means[1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "fedgraph_machines")
    parser.add_argument("--data", nargs="+", choices=DATA, default=["cora"], help="replace in the record")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--policies", type=Path, help="the folder of what is learned; default: temporary")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    found = json.loads(options.out.read_text())["data"] if options.out.exists() and not options.tiny else {}

    def save(data: str, of_data: dict[str, Any]) -> None:
        found[data] = of_data
        each = [{"factor": factor, "bandwidth": bandwidth} for factor, bandwidth in machines()]
        finish(options.out, began, load_before, {"slowdown": SLOWDOWN, "machines": each, "data": found})

    cases, seeds, rounds = {data: DATA[data] for data in options.data}, options.seeds, LEARNING_ROUNDS
    if options.tiny:
        cases, seeds, rounds = {"social": TINY}, [0], 3
    with tempfile.TemporaryDirectory() as folder:
        for data, case in cases.items():
            place = options.policies or Path(folder)
            measure(data, case, seeds, place, learning_rounds=rounds, save=partial(save, data))


if __name__ == "__main__":
    main()
