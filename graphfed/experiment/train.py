"""One run of any classification method: the part that is the same for all of them.

It is a program over places too, so it runs wherever a method runs: every round starts with one control
broadcast, metrics are sums of client parts and cross as named transfers, the best round is chosen on the
validation vertices alone, and the test vertices are scored once, at the end. `Outcome` is what this process
may know: at a site its own predictions, at the server the metrics, in the local runtime both."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.data.graph import Graph, Split
from graphfed.data.partition import partition
from graphfed.errors import GraphfedError, InputError
from graphfed.experiment.checkpoint import NOTHING_DUE, Checkpoints, Progress, Snapshot
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.methods.base import Method, State, Task, TrainingConfig, clients_in_round
from graphfed.methods.training import choose_clients, own_view, predict_shared, prepare
from graphfed.random import fold, permutation
from graphfed.runtime.interrupts import Interrupted

__all__ = ["MESSAGES", "Event", "Outcome", "pooled_score", "train"]


#: The transfers of every run beside the method's own, in words (see `Method.messages`).
MESSAGES = {
    "control": "What opens a round: whether to keep, save or stop, and who takes part. Public.",
    "val_scores": "How many of a site's validation vertices of each class are predicted as which class, and "
    "their summed loss, in every evaluated round. The server reads each site's table.",
    "final_val_scores": "The table of val_scores for the chosen model, once.",
    "final_test_scores": "How many of a site's test vertices of each class are predicted as which class, and "
    "their summed loss, once. The server reads each site's table.",
}

#: What a vertex counts for in scores. A vertex that several clients own counts once, each one's prediction
#: for an equal share: with up to 16 owners that is a whole number of these units, so sums are exact.
SCORE_UNITS = 720_720

#: accuracy, macro_f1 and loss; None where there was nothing to score
Metrics = dict[str, float | None]


@dataclass(frozen=True)
class Event:
    """Progress: sent after setup, after every round and at the end. bytes: set-up and training so far; note:
    in phase "note", something that a person should know."""

    phase: str
    round: int
    rounds: int
    val: Metrics | None
    bytes: int
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a run gave. best_round: None where every client has its own; val, test and test_confusion [C, C +
    1] (class, prediction, none) are known where the server is, None elsewhere; state: of the best round;
    predictions: at the clients, (rows [n], logits [n, C]) of every owned vertex."""

    best_round: int | None
    rounds_run: int
    val: Metrics | None
    test: Metrics | None
    test_confusion: list[list[float]] | None
    seconds: dict[str, float]
    history: list[dict[str, Any]]
    state: State
    predictions: Located
    details: dict[str, Any] = field(default_factory=dict)


# ---- functions run at the clients --------------------------------------------------------------------------


def score_clients(cohort: Cohort, logits: Tensor, target: str) -> dict[str, Tensor]:
    """Every client's confusion counts [K, C, C + 1] (class, prediction), in SCORE_UNITS, and summed loss [K].

    The last column counts rows whose logits are not all finite: training has diverged, they predict
    nothing."""
    rows = cohort.rows(target)
    y, client, c = cohort.y[rows], cohort.client[rows], cohort.num_classes
    predicted = torch.where(logits.isfinite().all(1), logits.argmax(1), c)
    cells = (client * c + y) * (c + 1) + predicted
    parts = SCORE_UNITS // cohort.owners[rows]
    confusion = torch.zeros(cohort.num_clients * c * (c + 1), dtype=torch.int64, device=y.device)
    confusion = confusion.index_add_(0, cells, parts).view(-1, c, c + 1)
    loss = torch.zeros(cohort.num_clients, dtype=torch.float64, device=y.device)
    losses = cross_entropy(logits.double(), y, reduction="none") * parts / SCORE_UNITS
    return {"confusion": confusion, "loss": loss.index_add_(0, client, losses)}


def total(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """The cohort's sum over its clients."""
    return {k: v.sum(0) for k, v in scores.items()}


def better_clients(scores: dict[str, Tensor], best: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which clients beat their own best validation score, [K] bool, and what it was (in SCORE_UNITS), [K].

    A client without validation vertices always takes the newest round, so it ends with the last."""
    correct = scores["confusion"].diagonal(dim1=1, dim2=2).sum(1)
    if best is None:
        return torch.ones_like(correct, dtype=torch.bool), correct
    better = (correct > best) | (scores["confusion"].sum((1, 2)) == 0)
    return better, torch.where(better, correct, best)


def owned_rows(cohort: Cohort, logits: Tensor) -> tuple[Tensor, Tensor]:
    return cohort.rows("all"), logits


def rows_of_target(cohort: Cohort, predictions: tuple[Tensor, Tensor], target: str) -> Tensor:
    """The logits of a target's rows out of those of every owned row."""
    rows, logits = predictions
    place = torch.zeros(cohort.num_rows, dtype=torch.int64, device=rows.device)
    place[rows] = torch.arange(len(rows), device=rows.device)
    return logits[place[cohort.rows(target)]]


# ---- functions run at the server ---------------------------------------------------------------------------


def metrics_of(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """accuracy, macro_f1 (over the classes that occur or are predicted) and mean cross-entropy from confusion
    counts in SCORE_UNITS."""
    confusion = sums["confusion"].double() / SCORE_UNITS
    count = float(confusion.sum())
    if count == 0:
        return {"accuracy": float("nan"), "macro_f1": float("nan"), "loss": float("nan")}
    hit, true, predicted = confusion.diagonal(), confusion.sum(1), confusion[:, :-1].sum(0)
    seen = (true + predicted) > 0
    f1 = 2 * hit[seen] / (true + predicted)[seen]
    return {
        "accuracy": float(hit.sum()) / count,
        "macro_f1": float(f1.mean()),
        "loss": float(sums["loss"]) / count,
    }


def counts_of(confusion: Tensor) -> list[list[float]]:
    """Confusion counts in vertices: whole numbers where no vertex counts in parts."""
    return [
        [units // SCORE_UNITS if units % SCORE_UNITS == 0 else units / SCORE_UNITS for units in row]
        for row in confusion.tolist()
    ]


def judge(progress: Progress, sums: Mapping[str, Tensor], number: int) -> Progress:
    """Compare a round's validation accuracy with the best one; of equal rounds the earliest stays."""
    accuracy = metrics_of(sums)["accuracy"]
    if bool(sums["confusion"][:, -1].any()):
        first = progress.diverged or number
        return replace(progress, stale=progress.stale + 1, latest_is_best=False, diverged=first)
    # Without validation vertices (nan) every round is as good as the last one.
    if progress.best is None or accuracy > progress.best or math.isnan(accuracy):
        return Progress(number, accuracy, 0, True, progress.diverged)
    return replace(progress, stale=progress.stale + 1, latest_is_best=False)


def plan(
    progress: Progress,
    number: int,
    num_clients: int,
    config: TrainingConfig,
    personal: bool,
    due: dict[str, int],
) -> dict[str, Any]:
    """The control values that open round `number`: keep the last evaluated state, save, stop, and who takes
    part (a bit for every client, in hexadecimal; None: everyone). `due`: see `Checkpoints.due`.

    A shared model that has diverged will not come back, so the run stops; other clients' own models go on."""
    out_of_patience = config.patience is not None and progress.stale >= config.patience
    lost = progress.diverged > 0 and not personal
    roster = None
    if config.fraction < 1:
        present = np.zeros(num_clients, dtype=bool)
        size = clients_in_round(config.fraction, num_clients)
        present[permutation(fold(config.seed, "roster", number), num_clients)[:size].numpy()] = True
        roster = np.packbits(present).tobytes().hex()
    return {
        "keep": progress.latest_is_best,
        "stop": out_of_patience or lost or number > config.rounds,
        "roster": roster,
        "best_round": progress.best_round,
        "diverged": progress.diverged,
        **due,
    }


def metrics_here(sums: Located) -> Metrics | None:
    """The metrics where the server is in this process; None in a number's place where there was nothing to
    score, or no finite number."""
    if not sums.parts:
        return None
    return {k: v if math.isfinite(v) else None for k, v in metrics_of(sums.parts[0]).items()}


# ---- the run -----------------------------------------------------------------------------------------------


def train(
    fed: Federation,
    method: Method,
    data: Located,
    task: Task,
    config: TrainingConfig,
    *,
    on_event: Callable[[Event], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Outcome:
    """Train `method` on the clients' `data` (a `Cohort` at each host), select on validation, score the test
    vertices once. `checkpoints`: where to save between rounds and what to go on from.

    InputError when `fraction` < 1 and the method needs every client; GraphfedError when no round's
    predictions were finite; Interrupted when somebody asked to stop, after saving."""
    if config.fraction < 1 and not method.dropouts:
        raise InputError(
            f"{method.name} needs every client in every round; fraction must be 1, got {config.fraction}"
        )
    began = time.perf_counter()

    def tell(phase: str, number: int, val: Metrics | None, note: str = "") -> None:
        if on_event is not None:
            seconds = time.perf_counter() - began
            on_event(Event(phase, number, config.rounds, val, fed.ledger.counted_bytes, seconds, note))

    fed.on_news = lambda news: tell("note", 0, None, news)
    with fed.phase("setup", round=0):
        state = method.setup(fed, data, task, config)
    ready = time.perf_counter()
    run = Snapshot(1, None, state, state, state, None, fed.server.run(Progress), [])
    if checkpoints is not None and checkpoints.start is not None:
        run = checkpoints.load(fed, state)
        # As if training had begun so long ago.
        began = time.perf_counter() - run.seconds
        ready = began + run.setup_seconds

    with nullcontext() if checkpoints is None else checkpoints.listen():
        # Told once signals are heard: who stops a run that says it has begun finds it saved.
        tell("setup", run.number - 1, None)
        while True:
            due = NOTHING_DUE if checkpoints is None else checkpoints.due()
            run, decision = _open_round(fed, method, config, run, due)
            if checkpoints is not None and (decision["save"] or decision["stop"]):
                spent = time.perf_counter() - began
                checkpoints.save(fed, replace(run, setup_seconds=ready - began, seconds=spent))
            if decision["interrupt"]:
                raise Interrupted(f"stopped before round {run.number}")
            if decision["stop"]:
                break
            number = run.number
            run, val = _round(fed, method, data, config, run)
            seconds = time.perf_counter() - ready
            run.history.append(
                {"round": number, "val": val, "bytes": fed.ledger.counted_bytes, "seconds": seconds}
            )
            tell("train", number, val)
    trained = time.perf_counter()
    if decision["diverged"] and not decision["best_round"]:
        raise GraphfedError(
            f"{method.name} diverged in round {decision['diverged']}: its predictions are no longer finite; "
            f"use a smaller learning rate (lr is {config.lr:g})"
        )

    predictions, final = _score_once(fed, method, data, run.best, config)
    done = time.perf_counter()
    rounds_run = len(run.history)
    tell("done", rounds_run, metrics_here(final["val"]))
    confusion = [counts_of(sums["confusion"]) for sums in fed.local_parts(final["test"])]
    return Outcome(
        best_round=None if method.personal else decision["best_round"],
        rounds_run=rounds_run,
        val=metrics_here(final["val"]),
        test=metrics_here(final["test"]),
        test_confusion=confusion[0] if confusion else None,
        seconds={
            "setup": ready - began,
            "train": trained - ready,
            "total": done - began,
            "per_round": (trained - ready) / rounds_run,
        },
        history=run.history,
        state=run.best,
        predictions=predictions,
        details={"diverged_in_round": decision["diverged"]} if decision["diverged"] else {},
    )


def _open_round(
    fed: Federation, method: Method, config: TrainingConfig, run: Snapshot, due: dict[str, int]
) -> tuple[Snapshot, dict[str, Any]]:
    """Send the control values that open the next round; where they say so the last evaluated state is the
    best."""
    decision = run.decision
    if decision is None:
        decision = fed.control(plan, run.progress, run.number, fed.num_clients, config, method.personal, due)
    else:  # saved: sent before the run was interrupted
        decision = {**decision, **NOTHING_DUE}
    best = run.evaluated if decision["keep"] and not method.personal else run.best
    return replace(run, decision=decision, best=best), decision


def _round(
    fed: Federation, method: Method, data: Located, config: TrainingConfig, run: Snapshot
) -> tuple[Snapshot, Metrics | None]:
    """The round that was opened, and its validation metrics where it is evaluated."""
    assert run.decision is not None
    number = run.number
    with _taking_part(fed, run.decision["roster"]), fed.phase("train", round=number):
        state = method.round(fed, run.state, config, number)
    run = replace(run, number=number + 1, decision=None, state=state)
    if number % config.eval_every != 0 and number != config.rounds:
        return run, None
    with fed.phase("eval"):
        logits = method.predict(fed, state, config, "val")
        scores, sums = _score(fed, data, logits, "val", "val_scores")
    run = replace(run, evaluated=state, progress=fed.server.run(judge, run.progress, sums, number))
    if method.personal:
        better, best_scores = fed.clients.run(better_clients, scores, run.best_scores, outputs=2)
        chosen = fed.clients.run(choose_clients, better, state.weights, run.best.weights)
        best = State({**state.values, "weights": chosen}, state.prepared)
        run = replace(run, best=best, best_scores=best_scores)
    return run, metrics_here(sums)


def _score_once(
    fed: Federation, method: Method, data: Located, best: State, config: TrainingConfig
) -> tuple[Located, dict[str, Located]]:
    """Predict every owned vertex with the chosen state, and score validation and test vertices from that."""
    with fed.phase("predict"):
        logits = method.predict(fed, best, config, "all")
        predictions = fed.clients.run(owned_rows, data, logits)
    final = {}
    with fed.phase("eval"):
        for target in ("val", "test"):
            rows = fed.clients.run(rows_of_target, data, predictions, target)
            _, final[target] = _score(fed, data, rows, target, f"final_{target}_scores")
    return predictions, final


@contextmanager
def _taking_part(fed: Federation, roster: str | None) -> Iterator[None]:
    """Only the clients of the roster take part in this block (see `plan`; None: everyone)."""
    everyone = fed.roster
    if roster is not None:
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(roster), dtype=np.uint8))
        fed.set_roster(bits[: fed.num_clients].astype(bool))
    try:
        yield
    finally:
        fed.set_roster(everyone)


def _score(
    fed: Federation, data: Located, logits: Located, target: str, name: str
) -> tuple[Located, Located]:
    """Every client's scores at the clients, and their sum at the server."""
    scores = fed.clients.run(score_clients, data, logits, target)
    return scores, fed.sum(fed.clients.run(total, scores), name=name, grad=False)


def pooled_score(
    method: Method, graph: Graph, split: Split, weights: Any, config: TrainingConfig
) -> dict[str, Any]:
    """Another question than the test score: the same weights on the pooled graph, with every edge. For shared
    models only."""
    cohort = make_cohort(
        graph, split, partition(graph, "random", 1, 0), [0], device=next(iter(weights.values())).device
    )
    prepared = prepare(cohort, own_view(cohort), None, config, personal=False)
    scores = score_clients(cohort, predict_shared(prepared, weights, config, "test"), "test")
    return metrics_of(total(scores))
