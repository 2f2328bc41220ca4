"""Find what looks wrong with a run that has ended.

Each finding has a text that says what to do about it. `studies.comparison` has the checks of comparisons.

Every check of a finished run is a pure function of what the run already has: the validation history and the
result. A check that does not have what it needs (a metric was not measured, a number was not finite) finds
nothing.

The checks are for accidents of training, so they must be silent on healthy runs. Where chance alone could
trigger one, its threshold comes from the standard error of the metric:

- An accuracy p over n nodes has a standard error of at most sqrt(p (1 - p) / n), and the difference of two
  independent ones sqrt(2) times as much. Two evaluations of one model on the same nodes differ by less.
- Among m evaluations there are m (m - 1) / 2 pairs, so a fall counts as a swing only above the quantile that
  one of that many differences exceeds in `FALSE_ALARMS` of all runs (a union bound), and validation
  oscillates only after `SWINGS` of them.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphfed.files import JsonObject
from graphfed.tasks.registry import get_task

if TYPE_CHECKING:
    from graphfed.methods.base import Method
    from graphfed.tasks.outcome import Outcome

#: What each warning says, in a few words for a table.
TITLES = {
    "undertrained": "still improving in the last round",
    "best_round_first": "best in the first round",
    "oscillating_validation": "validation oscillates",
    "class_never_predicted": "a class is never predicted",
    "no_better_than_majority": "no better than the largest class",
    "no_better_than_chance": "no better than chance",
    "large_loss": "very large loss",
    "coarse_ranks": "AUC and average precision are rough",
    "nothing_generated": "no neighbour was generated",
    "central_below_isolated": "pooled training is below training alone",
    "worse_than_last_value": "worse than repeating the last value",
    "unequal_settings": "rows with different training settings",
}

#: The fraction of healthy runs in which noise alone may look like one swing of validation.
FALSE_ALARMS = 0.01
#: Swings in the second half of training that make an oscillation.
SWINGS = 3
#: The smallest swing: of a metric between 0 and 1, and of an error as a fraction of its best value.
SMALLEST_SWING, SMALLEST_ERROR_SWING = 0.05, 0.5
#: Evaluations in the second half below which nothing is said about swings.
FEWEST_EVALUATIONS = 6
#: A loss above this many times that of a uniform guess is called very large.
LARGE_LOSS = 1.5
#: At most so many classes are named.
NAMED_CLASSES = 5
#: The error of a metric that depends on the order of scores, above which a warning gives it.
LARGE_RANK_ERROR = 0.005


@dataclass(frozen=True)
class ResultWarning:
    """One thing that looks wrong: what was seen and what to do, in sentences.

    In a comparison, `rows` has the labels of the rows that it is about.
    """

    code: str
    text: str
    rows: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        """Return code, text, and rows if there are any, for result.json or comparison.json."""
        content: JsonObject = {"code": self.code, "text": self.text}
        return {**content, "rows": list(self.rows)} if self.rows else content


@dataclass(frozen=True)
class Evidence:
    """What the checks of one run read.

    Attributes:
        best_round: The chosen round; None if every client has its own.
        history: The lines of metrics.jsonl, each with `round` and `val` (a mapping or None).
        confusion: Test counts by class and prediction, [C, C + 1]; None if no classes are predicted.
        class_names: The names of the classes; empty if they have none.
        scored: The number of nodes or pairs that were scored in "val" and "test", where it is known.
        rank_error: How far the test metrics that depend on the order of scores may be from their exact
            values.
        generated: The number of neighbours that the clients generated; None if they generate none or it is
            not known.
    """

    task: str
    metric: str
    rounds: int
    rounds_run: int
    best_round: int | None
    lr: float
    history: Sequence[JsonObject]
    val: Mapping[str, float | None]
    test: Mapping[str, float | None]
    confusion: Sequence[Sequence[float]] | None = None
    class_names: Sequence[str] = ()
    scored: Mapping[str, float] = field(default_factory=dict)
    rank_error: float = 0.0
    generated: int | None = None

    @property
    def is_error(self) -> bool:
        """Whether the metric is an error, the smaller the better."""
        return get_task(self.task).error

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Return (round, value) for every round in which a validation metric was evaluated and finite."""
        points = ((line["round"], (line["val"] or {}).get(metric)) for line in self.history)
        return [(number, value) for number, value in points if value is not None and math.isfinite(value)]


def check_run(run: Evidence) -> list[ResultWarning]:
    """Return what looks wrong with one run, in the order of `TITLES`."""
    checks = (
        _best_round,
        _oscillation,
        _unpredicted_classes,
        _majority,
        _chance,
        _loss,
        _rank_error,
        _nothing_generated,
    )
    return [warning for check in checks for warning in check(run)]


def diagnose(
    method: "Method", task: str, config: Any, outcome: "Outcome", class_names: Sequence[str]
) -> JsonObject:
    """Return what the details of a result say about how far it can be trusted and compared.

    - training: the settings that rows of a table should have in common, without the seed; empty for a method
      that trains nothing.
    - selected_by: the validation metric that chose the round.
    - warnings: a list of {code, text}.

    `outcome` is that of the process that has the server.
    """
    # In node classification the server has chosen the metric by the clients' class counts.
    metric = outcome.details.get("selected_by") or get_task(task).decides(config, None)
    if not method.trains:
        return {"training": {}, "selected_by": metric, "warnings": []}
    evidence = Evidence(
        task=task,
        metric=metric,
        rounds=config.run.rounds,
        rounds_run=outcome.rounds_run,
        best_round=outcome.best_round,
        lr=config.training.lr,
        history=outcome.history,
        val=outcome.val or {},
        test=outcome.test or {},
        confusion=outcome.test_confusion,
        class_names=class_names,
        scored=outcome.details.get("scored", {}),
        rank_error=outcome.details.get("rank_error", 0.0),
        generated=_generated(outcome),
    )
    return {
        "training": {key: v for key, v in method.tree.listed(config).items() if key != "seed"},
        "selected_by": metric,
        "warnings": [warning.to_json() for warning in check_run(evidence)],
    }


# ---- checks of one run -------------------------------------------------------------------------------------


def _best_round(run: Evidence) -> Iterator[ResultWarning]:
    """The best round is the last one evaluated, or the first."""
    curve = run.curve(run.metric)
    # A metric that never changes has no best round, unless the loss shows a trend.
    if len(curve) < 2 or (len({value for _, value in curve}) < 2 and _loss_trend(run) == 0):
        return
    first, last = curve[0][0], curve[-1][0]
    best = run.best_round
    if best is None:  # every client has its own: take the best round of all together
        pick = min if run.is_error else max
        best = pick(curve, key=lambda point: point[1])[0]
    # On a plateau the maximum is in the last round as likely as in any other. There the loss had its
    # minimum before.
    if best == last and run.rounds_run >= run.rounds and _loss_trend(run) <= 0:
        yield ResultWarning(
            "undertrained",
            f"The best round was the last one ({last} of {run.rounds}), so training had probably not ended. "
            f"Run again with more rounds (--rounds {2 * run.rounds}) or a larger learning rate (it was "
            f"lr={run.lr:g}), or extend the run (graphfed resume FOLDER --rounds {2 * run.rounds}).",
        )
    # On a curve that falls from the start, the loss says whether the steps are too small or too large.
    elif best == first:
        too_small = _loss_trend(run) < 0
        yield ResultWarning(
            "best_round_first",
            f"The best round was the first one evaluated (round {first}): the {run.rounds_run - first} "
            f"rounds after it did not improve the validation {run.metric.replace('_', ' ')}"
            + (
                f", though the loss still falls. The learning rate lr={run.lr:g} is probably too small: "
                "use a larger one, or more rounds."
                if too_small
                else f". The learning rate lr={run.lr:g} is probably too large, or there is nothing to learn "
                "from: use a smaller one, and check features and labels."
            ),
        )


def _loss_trend(run: Evidence) -> int:
    """Return -1 if the validation loss is smallest at the end, 1 if it was smallest before, and 0 if no loss
    is known or it never changed.
    """
    losses = [value for _, value in run.curve("loss")]
    if len(losses) < 2 or max(losses) == min(losses):
        return 0
    return -1 if losses[-1] <= min(losses) else 1


def _oscillation(run: Evidence) -> Iterator[ResultWarning]:
    """Validation falls by far more than its sampling noise, again and again, in the second half."""
    # Accuracy is a fraction of nodes, so its noise is known; the noise of a mean over classes differs.
    metric = "accuracy" if run.curve("accuracy") else run.metric
    curve = [value for _, value in run.curve(metric)]
    second = curve[len(curve) // 2 :]
    if len(second) < FEWEST_EVALUATIONS:
        return
    if run.is_error:
        least, values = SMALLEST_ERROR_SWING * min(curve), [-value for value in second]
    elif run.scored.get("val"):
        least, values = _smallest_swing(second, run.scored["val"]), second
    else:
        return
    if swings(values, least) < SWINGS:
        return
    shown = f"{min(second):.3g} and {max(second):.3g}"
    yield ResultWarning(
        "oscillating_validation",
        f"The validation {metric.replace('_', ' ')} swings between {shown} in the second half of training, "
        f"{swings(values, least)} times by more than {least:.2g}"
        + ("" if run.is_error else ", which is more than chance explains")
        + f". The best round is then partly luck. Use a smaller learning rate (it was lr={run.lr:g}) or "
        "fewer local steps.",
    )


def _smallest_swing(values: Sequence[float], count: float) -> float:
    """Return the fall that counts as a swing (see the module's docstring).

    The AUC of n pairs, half of them edges, has a standard error of at most sqrt(p (1 - p) / (n / 2)); `count`
    nodes stand for the larger of the two groups.
    """
    p = min(max(statistics.fmean(values), 0.0), 1.0)
    pairs = len(values) * (len(values) - 1) / 2
    quantile = statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / pairs)
    # Two independent evaluations differ with sqrt(2) times the standard error of one.
    return max(SMALLEST_SWING, quantile * math.sqrt(2 * p * (1 - p) / count))


def swings(values: Sequence[float], least: float) -> int:
    """Count the falls of at least `least` that follow each other with a rise of at least `least` between."""
    # Falls and rises that are smaller than `least` are noise, and change neither the state nor the count.
    falls, falling, extreme = 0, False, values[0]
    for value in values:
        if falling:
            extreme = min(extreme, value)
            if value - extreme >= least:
                falling, extreme = False, value
        else:
            extreme = max(extreme, value)
            if extreme - value >= least:
                falls, falling, extreme = falls + 1, True, value
    return falls


def _unpredicted_classes(run: Evidence) -> Iterator[ResultWarning]:
    """A class of the test nodes that no node is predicted as."""
    if not run.confusion:
        return
    true, predicted = _margins(run.confusion)
    absent = [c for c, count in enumerate(true) if count > 0 and not predicted[c]]
    if not absent:
        return
    names = run.class_names if len(run.class_names) == len(true) else [str(c) for c in range(len(true))]
    named = [f"{names[c]!r} ({true[c]:g} test nodes)" for c in absent[:NAMED_CLASSES]]
    more = f" and {len(absent) - NAMED_CLASSES} more" if len(absent) > NAMED_CLASSES else ""
    one = len(absent) == 1
    yield ResultWarning(
        "class_never_predicted",
        f"The {'class' if one else 'classes'} {', '.join(named)}{more} of {sum(true):g} test nodes "
        f"{'is' if one else 'are'} never predicted. Check that {'it has' if one else 'they have'} training "
        "nodes, train for more rounds, or set class_weights=balanced; do not rely on the accuracy of this "
        "model.",
    )


def _majority(run: Evidence) -> Iterator[ResultWarning]:
    """Test accuracy is not above the fraction of the largest class, and the classes are not separated."""
    accuracy = run.test.get("accuracy")
    if not run.confusion or accuracy is None:
        return
    true, _ = _margins(run.confusion)
    count = sum(true)
    present = [c for c, of_class in enumerate(true) if of_class > 0]
    if len(present) < 2:
        return
    majority = max(true) / count
    # The standard error of the accuracy of a constant prediction, over `count` nodes.
    error = math.sqrt(majority * (1 - majority) / count)
    # A model for rare classes may be useful although it is less accurate than a constant prediction: it finds
    # each class more often than a guess does.
    recalls = {c: run.confusion[c][c] / true[c] for c in present}
    balanced = statistics.fmean(recalls.values())
    balanced_error = math.sqrt(sum(r * (1 - r) / true[c] for c, r in recalls.items())) / len(present)
    if accuracy <= majority + error and balanced <= 1 / len(present) + 2 * balanced_error:
        yield ResultWarning(
            "no_better_than_majority",
            f"The test accuracy of {100 * accuracy:.1f} % is no better than always predicting the largest "
            f"class, which has {100 * majority:.1f} % of the {count:g} test nodes: nothing useful was "
            f"learned. Check the features and labels, and try another learning rate (it was lr={run.lr:g}) "
            "or more rounds.",
        )


def _chance(run: Evidence) -> Iterator[ResultWarning]:
    """An area under the ROC curve of a half or less."""
    for metric in ("auc", "roc_auc"):
        value = run.test.get(metric)
        if value is None:
            continue
        pairs = run.scored.get("test", 0) if metric == "auc" else 0
        # Of n pairs, half of them edges, chance has the standard error sqrt((n + 1) / (3 n^2)).
        error = math.sqrt(1 / (3 * pairs)) if pairs else 0.0
        if value <= 0.5 + error:
            yield ResultWarning(
                "no_better_than_chance",
                f"The test AUC of {value:.3f} is no better than guessing (0.5): nothing useful was learned. "
                f"Check the features, and try another learning rate (it was lr={run.lr:g}) or more rounds.",
            )


def _loss(run: Evidence) -> Iterator[ResultWarning]:
    """Test or validation loss far above that of a uniform guess."""
    # Pairs of nodes are edges or not, which is two classes.
    classes = 2 if run.confusion is None else len(run.confusion)
    if run.is_error or classes < 2:
        return
    guess = math.log(classes)
    losses = {"test": run.test.get("loss"), "validation": run.val.get("loss")}
    large = {part: loss for part, loss in losses.items() if loss is not None and loss > LARGE_LOSS * guess}
    if large:
        part, loss = max(large.items(), key=lambda item: item[1])
        yield ResultWarning(
            "large_loss",
            f"The {part} loss of {loss:.3g} is above {guess:.3g}, that of guessing uniformly among "
            f"{classes} classes: the model is certain where it is wrong. Use ten times the weight "
            f"decay, more dropout, or a smaller learning rate (it was lr={run.lr:g}); do not use the "
            "predicted probabilities.",
        )


def _rank_error(run: Evidence) -> Iterator[ResultWarning]:
    """The bins of scores are still too coarse after the last count."""
    if run.rank_error > LARGE_RANK_ERROR:
        yield ResultWarning(
            "coarse_ranks",
            f"The test AUC and average precision may be off by up to {run.rank_error:.2g}, because most "
            "scores lie in a few narrow ranges. Compute them from predictions.parquet if "
            "you need them exactly.",
        )


def _generated(outcome: "Outcome") -> int | None:
    """Add up the neighbours that the clients of this process generated."""
    parts = () if outcome.client_statistics is None else outcome.client_statistics.parts
    counts = [part["generated_neighbours"] for part in parts if "generated_neighbours" in part]
    return sum(int(count.sum()) for count in counts) if counts else None


def _nothing_generated(run: Evidence) -> Iterator[ResultWarning]:
    """The clients have generators of missing neighbours, and generated none."""
    if run.generated == 0:
        yield ResultWarning(
            "nothing_generated",
            "No client generated a neighbour: the generators predict fewer than half a missing neighbour for "
            "every node. The result is that of fedavg with the same settings, which costs less. Use fedavg, "
            "or train the generators for more steps (generator_steps) or at another rate (generator_lr).",
        )


def _margins(confusion: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the number of test nodes by class, and of predictions by class, [C] each."""
    true = [float(sum(row)) for row in confusion]
    predicted = [float(sum(row[c] for row in confusion)) for c in range(len(confusion))]
    return true, predicted
