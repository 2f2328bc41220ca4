"""Train and score one run: the part that is the same for every method and task.

It is a program over places, so it runs wherever a method runs. Every round starts with one control broadcast,
metrics are computed from named transfers, the best round is chosen on the validation part alone, and the test
part is scored once, at the end. The task defines what is scored and how (`TaskDefinition`). `Outcome` holds
what this process may know: a worker has the predictions of its clients, the server has the metrics, and in
the local runtime one process has both.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from graphfed.errors import GraphfedError, InputError
from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import check_contributors, check_sums
from graphfed.federation.secure.protection import needs_parts
from graphfed.federation.series import TaskData
from graphfed.federation.state import accept_roster, roster_code, roster_of
from graphfed.files import JsonObject, plain
from graphfed.memory import peak_memory
from graphfed.methods.base import Method, State, Task
from graphfed.methods.common import feature_transform
from graphfed.methods.common.local_training import choose_clients
from graphfed.methods.parts import clients_in_round, is_simulated, samples_clients, sum_protection
from graphfed.methods.settings import value
from graphfed.random import fold, permutation
from graphfed.runs.checkpoint import NOTHING_DUE, Checkpoints, Progress, Snapshot
from graphfed.runtime.interrupts import Interrupted
from graphfed.tasks.base import AnyTask
from graphfed.tasks.evaluation import CONTRIBUTORS, SECURE_MESSAGES, Scored
from graphfed.tasks.outcome import Metrics, Outcome
from graphfed.tasks.registry import TASKS, get_task

#: The description of the message that opens every round (see `Sent.messages`).
CONTROL = {
    "control": "The server opens a round: keep the state or not, save, stop, and who takes part. Public."
}
#: The descriptions of all transfers of runs, except the method's own.
MESSAGES = {
    **CONTROL,
    **{name: text for task in map(get_task, TASKS) for name, text in task.messages.items()},
    **SECURE_MESSAGES,
    **feature_transform.MESSAGES,
    **{name: text for task in map(get_task, TASKS) for name, text in task.agree_messages.items()},
}


@dataclass(frozen=True)
class Event:
    """A progress message: sent after set-up, after every round and at the end.

    Attributes:
        phase: "setup", "train", "done", "stage" or "note".
        rounds: The largest number of rounds.
        val: The validation metrics, if the round was evaluated and the server is here.
        bytes: Payload bytes of set-up and training so far.
        seconds: The time since the run began.
        note: In the phase "note" a message for people, and in "stage" the work that begins now.
        memory: The largest memory of this process in bytes, if all places are in it; else 0.
        may_stop: Whether the run may end before the last round.
        line: The line of metrics.jsonl of the round that has ended.
    """

    phase: str
    round: int = 0
    rounds: int = 0
    val: Metrics | None = None
    bytes: int = 0
    seconds: float = 0.0
    note: str = ""
    memory: int = 0
    may_stop: bool = False
    line: JsonObject | None = None


# ---- functions run at the server ---------------------------------------------------------------------------


def update_progress(progress: Progress, scored: Scored, number: int, task: str, metric: str) -> Progress:
    """Compare a round's validation metric with the best one; of equal rounds the earliest stays the best."""
    value = scored.metrics[metric]
    if scored.lost:
        first = progress.diverged or number
        return replace(progress, stale=progress.stale + 1, latest_is_best=False, diverged=first)
    # With nothing to validate on (nan) every round is as good as the last one.
    if progress.best is None or get_task(task).better(value, progress.best) or math.isnan(value):
        return Progress(number, value, 0, True, progress.diverged)
    return replace(progress, stale=progress.stale + 1, latest_is_best=False)


def patience_of(config: Any) -> int | None:
    """Return after how many evaluations without improvement training stops; None if it does not."""
    patience: int | None = value(config, "patience")
    return patience


#: The control values that open a round, by name.
DECISION: Mapping[str, Any] = {
    **dict.fromkeys(("keep", "stop"), bool),
    **dict.fromkeys(("best_round", "diverged", *NOTHING_DUE), int),
    "roster": str | None,
}


def plan(
    progress: Progress,
    number: int,
    num_clients: int,
    config: Any,
    personal: bool,
    due: dict[str, int],
    enrolled: str | None,
) -> JsonObject:
    """Return the control values that open a round: keep the last evaluated state, save, stop, and who takes
    part.

    With `personal` every client has its own model. `due` is explained in `Checkpoints.due`, and `enrolled` is
    the `roster_code` of the clients that may take part, None for all.
    """
    patience = patience_of(config)
    out_of_patience = patience is not None and progress.stale >= patience
    # A shared model that has diverged does not recover, so the run stops. Clients' own models go on.
    lost = progress.diverged > 0 and not personal
    roster = None
    if samples_clients(config):
        able = np.arange(num_clients)
        if enrolled is not None:
            able = roster_of(enrolled, num_clients).nonzero()[0]
        size = clients_in_round(config, len(able))
        present = np.zeros(num_clients, dtype=bool)
        # Drawn by the round and not by a generator's state, so that a resumed run has the same rosters.
        present[able[permutation(fold(config.run.seed, "roster", number), len(able))[:size].numpy()]] = True
        roster = roster_code(present)
    return {
        "keep": progress.latest_is_best,
        "stop": out_of_patience or lost or number > config.run.rounds,
        "roster": roster,
        "best_round": progress.best_round,
        "diverged": progress.diverged,
        **due,
    }


def metrics_here(scored: Located) -> Metrics | None:
    """Return the metrics if the server is in this process; a number that is missing or not finite is None."""
    if not scored.parts:
        return None
    return {k: v if math.isfinite(v) else None for k, v in scored.parts[0].metrics.items()}


# ---- the run -----------------------------------------------------------------------------------------------


def agree_before_setup(
    fed: Federation, data: TaskData, method: Method, task: Task, config: Any
) -> tuple[TaskData, feature_transform.Agreed]:
    """Agree on what the clients of every method need alike: what fills gaps of features, their scale, the
    weights of classes.

    The first result is the clients' data with all of them.
    """
    data, transform = feature_transform.transform_features(fed, data, method, config, task)
    return get_task(task.name).agree(fed, data, task, config), transform


def check_sums_of_run(
    fed: Federation,
    data: TaskData,
    evaluation: AnyTask,
    enrolled: np.ndarray | None,
    config: Any,
) -> None:
    """Refuse a run whose sums cannot hide a client: too few take part, or too few have data in a part of the
    split.
    """
    protection = sum_protection(config)
    if not needs_parts(protection):
        return
    with taking_part(fed, enrolled):
        check_sums(fed, protection, clients_in_round(config, int(fed.roster.sum())))
        present = fed.present()
    has_parts = fed.clients.run(evaluation.has_parts, evaluation.at_clients(data), present)
    check_contributors(fed, has_parts, evaluation.summed, protection, name=CONTRIBUTORS)


@dataclass
class _Watch:
    """Reports a run's progress to `on_event`, with the seconds since `began`."""

    fed: Federation
    config: Any
    on_event: Callable[[Event], None] | None
    began: float

    def report(
        self, phase: str, number: int, val: Metrics | None, note: str = "", *, line: JsonObject | None = None
    ) -> None:
        if self.on_event is None:
            return
        seconds, fed = time.perf_counter() - self.began, self.fed
        # One of several processes knows only its own memory, which says little about the run.
        memory = peak_memory() if fed.link is None else 0
        sent, may_stop = fed.ledger.counted_bytes, patience_of(self.config) is not None
        rounds = self.config.run.rounds
        self.on_event(Event(phase, number, rounds, val, sent, seconds, note, memory, may_stop, plain(line)))


def _check_protocols(fed: Federation, config: Any) -> None:
    if is_simulated(config) != fed.simulated:
        asked, made = ("simulated", "real") if is_simulated(config) else ("real", "simulated")
        raise InputError(
            f"protocols={asked} cannot be used in a federation whose protocols are {made}; set "
            f"protocols={made}"
        )


@dataclass(frozen=True, eq=False)
class _Training:
    """What is the same in every round: the program's arguments, and how its results are scored."""

    fed: Federation
    method: Method
    data: TaskData
    task: Task
    config: Any
    evaluation: AnyTask
    prepared: object
    enrolled: np.ndarray | None
    checkpoints: Checkpoints | None

    def open_round(self, run: Snapshot, due: dict[str, int]) -> tuple[Snapshot, JsonObject]:
        """Send the control values that open the next round. If they say so, the last evaluated state
        becomes the best.
        """
        decision, fed, personal = run.decision, self.fed, self.method.personal
        if decision is None:
            able = None if self.enrolled is None else roster_code(self.enrolled)
            decision = fed.control(
                plan,
                run.progress,
                run.number,
                fed.num_clients,
                self.config,
                personal,
                due,
                able,
                values=DECISION,
                accept=partial(accept_roster, fed.num_clients),
            )
        else:  # it was saved, and sent before the run was interrupted
            decision = {**decision, **NOTHING_DUE}
            # A finished run that is extended: only the end of the planned rounds was the reason to stop.
            if 0 < run.planned < run.number <= self.config.run.rounds:
                decision["stop"] = False
        # With models of their own, clients have chosen their best weights already (`do_round`).
        best = run.evaluated if decision["keep"] and not personal else run.best
        return replace(run, decision=decision, best=best), decision

    def do_round(self, run: Snapshot) -> tuple[Snapshot, Metrics | None]:
        """Run the round that was opened; return its validation metrics if it is evaluated."""
        assert run.decision is not None
        fed, method, config, evaluation = self.fed, self.method, self.config, self.evaluation
        number = run.number
        roster = run.decision["roster"]
        present = None if roster is None else roster_of(roster, fed.num_clients)
        # Only once: later rounds are reported by their events.
        if not run.history:
            fed.begin(f"training: round {number} of {config.run.rounds}")
        with taking_part(fed, present), fed.phase("train", round_number=number):
            state = method.round(fed, run.state, config, number)
        # Values that only the next round needs are those of the newest round in every state, so that none is
        # held twice.
        newest = {name: state.values[name] for name in method.state.scratch if name in state.values}
        best = State({**run.best.values, **newest}, state.prepared) if newest else run.best
        run = replace(run, number=number + 1, decision=None, state=state, best=best)
        # The last round is always evaluated.
        if number % value(config, "eval_every", 1) != 0 and number != config.run.rounds:
            return run, None
        with fed.phase("eval"):
            outputs = method.predict(fed, state, config, "val")
            scores, scored = evaluation.score(fed, self.data, outputs, "val", "val", self.prepared, config)
        if self.checkpoints is not None:
            self.checkpoints.all_evaluated()
        metric = evaluation.decides(config, self.prepared)
        # Only the server knows it; the other places get the decision with the next control message.
        progress = fed.server.run(update_progress, run.progress, scored, number, self.task.name, metric)
        run = replace(run, evaluated=state, progress=progress)
        if method.personal:
            better, best_scores = fed.clients.run(
                evaluation.better_clients, scores, run.best_scores, outputs=2
            )
            # Every client keeps the weights of its own best round.
            chosen = fed.clients.run(choose_clients, better, state.weights, run.best.weights)
            best = State({**state.values, "weights": chosen}, state.prepared)
            run = replace(run, best=best, best_scores=best_scores)
        return run, metrics_here(scored)

    def score_once(self, best: State) -> tuple[Located, dict[str, Located]]:
        """Predict everything with the chosen state, and score the validation and the test part of the
        predictions.
        """
        fed, evaluation = self.fed, self.evaluation
        cohort = evaluation.at_clients(self.data)
        with fed.phase("predict"):
            outputs = self.method.predict(fed, best, self.config, "all")
            predictions = fed.clients.run(evaluation.keep, cohort, outputs)
        final = {}
        with fed.phase("eval"):
            for target in ("val", "test"):
                outputs = fed.clients.run(evaluation.of_target, cohort, predictions, target)
                # The validation metrics are those of the clients that took part in selecting.
                with taking_part(fed, self.enrolled if target == "val" else None):
                    _, final[target] = evaluation.score(
                        fed, self.data, outputs, target, f"final_{target}", self.prepared, self.config
                    )
        return predictions, final

    def line(self, state: State, number: int, val: Metrics | None, seconds: float) -> JsonObject:
        """Return a round as metrics.jsonl has it."""
        line = {"round": number, "val": val, "bytes": self.fed.ledger.counted_bytes, "seconds": seconds}
        facts = self.facts(state)
        return {**line, "facts": facts} if facts else line

    def facts(self, state: State) -> JsonObject:
        """Return the figures that the method reports about itself (`StateValues.facts`), if the server is
        in this process.
        """
        if not self.method.state.facts:
            return {}
        parts = self.fed.local_parts(state.values[self.method.state.facts])
        return {k: t.item() for part in parts for k, t in part.items()}

    def details(self, best: State, final: Mapping[str, Located]) -> JsonObject:
        """Return what a result contains besides metrics, if the server is in this process.

        `scored` has the number of nodes or pairs of each part, if they are counted.
        """
        fed = self.fed
        details: JsonObject = {}
        for scored in fed.local_parts(final["test"]):
            details |= scored.report
        counts = {part: one.count for part, scored in final.items() for one in fed.local_parts(scored)}
        if any(counts.values()):
            details["scored"] = counts
        return {**details, **self.facts(best)}


def train(
    fed: Federation,
    method: Method,
    data: TaskData,
    task: Task,
    config: Any,
    *,
    on_event: Callable[[Event], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Outcome:
    """Train a method, select the best round on validation, and score the test part once.

    `data` is a `Cohort` for each worker, or `SensorData` for forecasting. The outcome has what this process
    may know of the trained model, its predictions and metrics.

    Raises:
        InputError: The federation's protocols are not those that `config` asks for.
        GraphfedError: No round's predictions were finite.
        Interrupted: A stop was requested; the run is saved.
    """
    _check_protocols(fed, config)
    evaluation = get_task(task.name)
    watch = _Watch(fed, config, on_event, time.perf_counter())
    fed.on_message = partial(watch.report, "note", 0, None)
    fed.on_stage = partial(watch.report, "stage", 0, None)
    fed.begin(f"setting up {method.name}")
    enrolled = evaluation.enrolled(fed, data)
    with fed.phase("eval"):
        # Before the first sum over the clients' data, which a run with too few clients would not hide.
        check_sums_of_run(fed, data, evaluation, enrolled, config)
        prepared = evaluation.prepare(fed, data, task, config)
    data, transform = agree_before_setup(fed, data, method, task, config)
    training = _Training(fed, method, data, task, config, evaluation, prepared, enrolled, checkpoints)
    with taking_part(fed, enrolled):
        if checkpoints is None or checkpoints.start is None:
            with fed.phase("setup", round_number=0):
                state = method.setup(fed, data, task, config)
            # Before the first evaluation, the state of set-up is the newest and the best one.
            run = Snapshot(1, None, state, state, state, None, fed.server.run(Progress), [])
            ready = time.perf_counter()
        else:
            run = checkpoints.load(fed, lambda values: restored(fed, method, data, task, config, values))
            # The clock goes on as if training had begun so long ago.
            watch.began = time.perf_counter() - run.seconds
            ready = watch.began + run.setup_seconds

        with nullcontext() if checkpoints is None else checkpoints.listen():
            # Reported once signals are heard, so that a run which is stopped after this message is saved.
            watch.report("setup", run.number - 1, None)
            while True:
                due = NOTHING_DUE if checkpoints is None else checkpoints.due()
                run, decision = training.open_round(run, due)
                # After the control message and before the round: every process saves the same snapshot.
                if checkpoints is not None and (decision["save"] or decision["stop"]):
                    saved = replace(run, planned=config.run.rounds, setup_seconds=ready - watch.began)
                    checkpoints.save(fed, replace(saved, seconds=time.perf_counter() - watch.began))
                if decision["interrupt"]:
                    raise Interrupted(f"stopped before round {run.number}")
                if decision["stop"]:
                    break
                number = run.number
                run, val = training.do_round(run)
                run.history.append(training.line(run.state, number, val, time.perf_counter() - ready))
                watch.report("train", number, val, line=run.history[-1])
    trained = time.perf_counter()
    # It diverged before the first finite evaluation, so no state can be scored.
    if decision["diverged"] and not decision["best_round"]:
        raise GraphfedError(
            f"{method.name} diverged in round {decision['diverged']}: its predictions are no longer finite; "
            f"{_way_out(config)}{_seen_before(fed)}"
        )

    fed.begin("predicting and scoring with the best round")
    predictions, final = training.score_once(run.best)
    done = time.perf_counter()
    rounds_run = len(run.history)
    watch.report("done", rounds_run, metrics_here(final["val"]))
    details = training.details(run.best, final)
    if decision["diverged"]:
        details["diverged_in_round"] = decision["diverged"]
    return Outcome(
        best_round=None if method.personal else decision["best_round"],
        rounds_run=rounds_run,
        val=metrics_here(final["val"]),
        test=metrics_here(final["test"]),
        test_confusion=details.pop("test_confusion", None),
        seconds={
            "setup": ready - watch.began,
            "train": trained - ready,
            "total": done - watch.began,
            "per_round": (trained - ready) / rounds_run,
        },
        history=run.history,
        state=run.best,
        predictions=predictions,
        details=details,
        client_statistics=None
        if method.client_statistics is None
        else method.client_statistics(fed, run.best, config),
        transform=transform.here,
    )


def _way_out(config: Any) -> str:
    lr = value(config, "lr")
    return "check the data" if lr is None else f"use a smaller learning rate (lr is {lr:g})"


def _seen_before(fed: Federation) -> str:
    """Return the notes of the checks of received numbers before training diverged, for a message."""
    notes = list(fed.received.notes.values())
    return f", or look here first: {'; '.join(notes[-3:])}" if notes else ""


def restored(
    fed: Federation,
    method: Method,
    data: TaskData,
    task: Task,
    config: Any,
    values: Mapping[str, Located],
) -> State:
    """Return a state with saved values, and with what set-up prepares.

    The prepared values come from the method's `restore`, if it has one, and else from its set-up. Raises
    InputError if the values are another method's.
    """
    with fed.phase("setup", round_number=0):
        if method.restore is not None:
            return method.restore(fed, data, task, config, values)
        fresh = method.setup(fed, data, task, config)
    if set(fresh.values) != set(values):
        odd = sorted(set(fresh.values) ^ set(values))[0]
        raise InputError(
            f"the saved state and the state of this method differ in {odd!r}; resume with the method that "
            "saved it"
        )
    return State(values, fresh.prepared)


@contextmanager
def taking_part(fed: Federation, present: np.ndarray | None) -> Iterator[None]:
    """Let only the clients `present`, bool [K], take part in this block; None for those that already do."""
    before = fed.roster
    if present is not None:
        fed.set_roster(present)
    try:
        yield
    finally:
        fed.set_roster(before)
