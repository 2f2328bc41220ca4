"""Scores of link prediction and of forecasts, class weights, and which metrics stand first: by plain loops
over small cohorts."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from protections import protection
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.graphs.link_splits import make_edge_split, training_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.data.sensors.windows import TimeSplit
from graphfed.federation import Federation, Located, as_leaves
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.federation.series import Network, SensorData, Series
from graphfed.federation.wire import encode
from graphfed.methods.averaging.methods import FEDAVG
from graphfed.methods.base import Task
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION
from graphfed.nn.edges import Edges
from graphfed.tasks.evaluation import Scored
from graphfed.tasks.forecasting import TASK as FORECASTS
from graphfed.tasks.graphs.class_weights import agree_class_weights, balanced_weights
from graphfed.tasks.graphs.link_scores import (
    BINS,
    CURVE,
    NOT_FINITE,
    coded_pairs,
    every_score,
    first_blocks,
    no_pairs,
    pair_rows,
    pair_scores,
    scored_sum,
    summed_loss,
)
from graphfed.tasks.graphs.node_scores import SCORE_UNITS
from graphfed.tasks.graphs.ranking import codes
from graphfed.tasks.headline import headline
from graphfed.tasks.link_prediction import TASK as LINKS
from graphfed.tasks.sensors.scores import (
    ERRORS,
    better_clients,
    metrics_of,
    no_errors,
    score_clients,
    scored,
    total,
)

CLIENTS = 3

# ---- forecasts ---------------------------------------------------------------------------------------------

#: 3 lags, 2 steps ahead; 4 + 2 + 3 windows of 14 steps, one more than there are.
SPLIT = TimeSplit("time", 3, 2, 1, 4, 2, 3, np.array([True, False, True]))
WINDOWS = {"train": range(4), "val": range(4, 6), "test": range(6, 9), "all": range(4, 9)}


def series() -> Series:
    """Sensor 1 has never read anything; some readings are 0, and some 1."""
    rng = np.random.default_rng(0)
    missing = rng.random((CLIENTS, 14)) < 0.3
    missing[1] = True
    readings = np.where(missing, 0, rng.integers(-2, 3, (CLIENTS, 14)))
    return Series((0, 1, 2), torch.from_numpy(readings).float(), torch.from_numpy(missing), 0, 5, SPLIT)


def forecast_of(target: str, lost: int | None = None) -> Tensor:
    """Of each client, window and step ahead; of client `lost` one is NaN and one is infinite."""
    made = torch.randn(CLIENTS, len(WINDOWS[target]), 2, generator=torch.Generator().manual_seed(1))
    if lost is not None:
        made[lost, 0, 0], made[lost, 1, 1] = math.nan, -math.inf
    return made


def errors_by_hand(data: Series, forecast: Tensor, target: str, client: int) -> list[dict[str, float]]:
    """ERRORS of a client, for each step ahead."""
    sums = [dict.fromkeys(ERRORS, 0.0) for _ in range(2)]
    for w, start in enumerate(WINDOWS[target]):
        for h in range(2):
            t, s = start + SPLIT.lags + h, sums[h]
            truth, predicted = float(data.readings[client, t]), float(forecast[client, w, h])
            error = abs(predicted - truth) if math.isfinite(predicted) else 0.0
            s["all"] += 1
            s["squared_as_read"] += error**2
            s["absolute_as_read"] += error
            s["lost"] += not math.isfinite(predicted)
            if not data.missing[client, t]:
                s["count"] += 1
                s["squared"] += error**2
                s["absolute"] += error
                if truth:
                    s["measured"] += 1
                    s["relative"] += error / abs(truth)
    return sums


@pytest.mark.parametrize("missing", ["masked", "as_read"])
@pytest.mark.parametrize("lost", [None, 2])
@pytest.mark.parametrize("target", ["val", "test"])
@pytest.mark.parametrize("present", [[True] * 3, [True, False, True], [False, True, False]], ids=str)
def test_errors_are_those_of_a_loop_over_windows_and_steps_ahead(
    present: list[bool], target: str, lost: int | None, missing: str
) -> None:
    """Of the clients that take part; a forecast of all clients or of those alone is the same."""
    data, forecast, here = series(), forecast_of(target, lost), torch.tensor(present)
    for given in (forecast, forecast[here]):
        found = score_clients(data, given, here, target, missing)
        count, squared = ("count", "squared") if missing == "masked" else ("all", "squared_as_read")
        for k in range(CLIENTS):
            sums = errors_by_hand(data, forecast, target, k)
            if not present[k]:
                sums = [dict.fromkeys(ERRORS, 0.0)] * 2
            expected = [[s[name] for name in ERRORS] for s in sums]
            assert found["errors"][k].tolist() == [pytest.approx(row) for row in expected]
            read = sum(s[count] for s in sums)
            decides = sum(s[squared] for s in sums) / read if read else math.nan
            if any(s["lost"] for s in sums):
                decides = math.inf
            assert float(found["decides"][k]) == pytest.approx(decides, nan_ok=True)
        assert total(found).tolist() == found["errors"].sum(0).tolist()


def test_metrics_are_roots_and_means_of_the_sums() -> None:
    sums = torch.tensor([4.0, 36.0, 10.0, 0.5, 2.0, 8.0, 72.0, 24.0, 0.0])
    assert metrics_of(sums) == {"rmse": 3, "mae": 2.5, "mape": 25, "rmse_as_read": 3, "mae_as_read": 3}
    nothing = metrics_of(torch.zeros(9))
    assert all(math.isnan(value) for value in nothing.values())
    two = scored(torch.stack([sums, 2 * sums]))
    assert two.metrics == pytest.approx(metrics_of(3 * sums))
    assert two.report["test_by_horizon"]["mae"] == [2.5, 2.5]
    assert not two.lost
    sums[8] = 1
    assert scored(torch.stack([0 * sums, sums])).lost


def test_a_client_takes_the_round_with_its_smallest_error_and_the_newest_without_one() -> None:
    scores = {"decides": torch.tensor([2.0, 3.0, 4.0, math.nan, math.inf])}
    better, best = better_clients(scores, None)
    assert better.tolist() == [True] * 5
    assert best is scores["decides"]
    before = torch.tensor([2.0, 4.0, 3.0, math.nan, 1.0])
    better, best = better_clients(scores, before)
    assert better.tolist() == [False, True, False, True, False]
    assert best.tolist() == pytest.approx([2, 3, 3, math.nan, 1], nan_ok=True)


def test_the_forecasts_of_a_part_are_those_of_its_windows() -> None:
    data, forecast = series(), forecast_of("all")
    kept = FORECASTS.keep(data, forecast)
    assert kept[0].tolist() == list(WINDOWS["all"])
    for target in ("val", "test"):
        chosen = [WINDOWS["all"].index(start) for start in WINDOWS[target]]
        assert FORECASTS.of_target(data, kept, target).tolist() == forecast[:, chosen].tolist()


def sensor_data(fed: Federation, observed: list[bool]) -> SensorData:
    none = torch.zeros(0, dtype=torch.int64)
    edges = Edges(none, none, torch.zeros(0), CLIENTS)
    network = Network(edges, 0, 5, replace(SPLIT, observed=np.array(observed)))
    return SensorData(fed.locate("clients", "series", [series()]), fed.locate("server", "network", [network]))


def test_the_sensors_that_take_part_are_those_that_the_network_names() -> None:
    fed = Federation([range(CLIENTS)])
    assert FORECASTS.enrolled(fed, sensor_data(fed, [True] * 3)) is None
    for observed in ([True, False, True], [False, False, True]):
        data = sensor_data(fed, observed)
        found = FORECASTS.enrolled(fed, data)
        assert found is not None
        assert found.tolist() == observed
        assert FORECASTS.at_clients(data) is data.series
    assert {entry.name for entry in fed.ledger.entries} == {"enrolled"}


@pytest.mark.parametrize(("missing", "metric"), [("masked", "rmse"), ("as_read", "rmse_as_read")])
@pytest.mark.parametrize("protection", ["plaintext", "secure"])
def test_forecasts_are_scored_by_their_sums_in_plaintext_or_hidden(
    protection: str, missing: str, metric: str
) -> None:
    fed, config = Federation([range(CLIENTS)], simulated=True), forecast_config(protection, missing)
    data, forecast = sensor_data(fed, [True] * 3), forecast_of("val")
    prepared = FORECASTS.prepare(fed, data, Task(1, 0, FORECASTING), config)
    located = fed.locate("clients", "forecast", [forecast])
    scores, at_server = FORECASTS.score(fed, data, located, "val", "val", prepared, config)
    assert scores is not None
    sums = sum(errors_table(series(), forecast, k) for k in range(CLIENTS))
    assert at_server.parts[0].metrics == pytest.approx(metrics_of(torch.tensor(sums).sum(0)), abs=1e-6)
    assert scores.parts[0]["errors"].sum(0).tolist() == [pytest.approx(row) for row in sums.tolist()]
    assert FORECASTS.decides(config, prepared) == metric
    names = {entry.name for entry in fed.ledger.entries}
    assert names == {"val_errors"} if protection == "plaintext" else "scores/masked" in names
    kinds = {entry.protection for entry in fed.ledger.entries}
    assert kinds == {"plaintext"} if protection == "plaintext" else "simulated" in kinds


def errors_table(data: Series, forecast: Tensor, client: int) -> np.ndarray:
    return np.array([[s[name] for name in ERRORS] for s in errors_by_hand(data, forecast, "val", client)])


def forecast_config(protection: str, missing: str) -> Any:
    """Of the settings of a run those that its evaluation reads."""
    return get_method("gru_local").configure({"horizon": 2, "aggregation": protection, "missing": missing})


def test_one_clients_part_of_a_hidden_sum_has_a_row_of_errors_for_each_step_ahead() -> None:
    assert no_errors(4)["errors"].shape == (4, 9)
    shapes = {key: tuple(value.shape) for key, value in no_pairs().items()}
    assert shapes == {"counts": (1, 2, BINS), "lost": (2,), "loss": ()}


# ---- pairs -------------------------------------------------------------------------------------------------


def link_cohort(clients: list[int] | None = None) -> Cohort:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 40, (2, 160))
    ends = ends[:, ends[0] != ends[1]]
    graph = make_graph("toy", rng.random((40, 2)), np.zeros(40, dtype=int), ends)
    split = make_edge_split(graph, "edges:0.6,0.2,0.2", 0)
    known = training_graph(graph, split)
    assigned = from_assignment(known, rng.integers(0, CLIENTS, 40), num_clients=CLIENTS)
    return make_cohort(known, split, assigned, range(CLIENTS) if clients is None else clients)


def some_scores(cohort: Cohort, target: str = "val") -> Tensor:
    return 5 * torch.randn(len(cohort.pairs(target)), generator=torch.Generator().manual_seed(2))


def test_the_pairs_of_a_client_are_numbered_from_0_on() -> None:
    cohort = link_cohort()
    assert cohort.links is not None
    for target in ("val", "test"):
        rows = pair_rows(cohort, target)
        client = cohort.client[cohort.links.row[cohort.pairs(target)]]
        assert rows.client.tolist() == client.tolist()
        counts = [int((client == k).sum()) for k in range(CLIENTS)]
        assert rows.ids.tolist() == [n for count in counts for n in range(count)]
        assert min(counts) > 1


def test_the_kept_scores_of_all_pairs_hold_those_of_each_part() -> None:
    cohort = link_cohort()
    scores = torch.arange(len(cohort.pairs("all")))
    kept = LINKS.keep(cohort, scores)
    assert kept[0].tolist() == scores.tolist()
    for target in ("val", "test"):
        assert LINKS.of_target(cohort, kept, target).tolist() == cohort.pairs(target).tolist()


def coded(values: list[int], labels: list[bool]) -> Tensor:
    """What is sent of pairs with these codes."""
    words = np.array(values, dtype="<i4").view(np.uint8).reshape(-1, 4)
    return torch.from_numpy(np.concatenate([words, np.array(labels, dtype=np.uint8)[:, None]], 1))


def test_codes_have_the_reverse_order_of_scores_and_a_score_that_is_not_finite_loses_the_run() -> None:
    largest = torch.finfo(torch.float32).max
    best, worst = codes(torch.tensor([largest, -largest])).tolist()
    assert best < worst < NOT_FINITE
    assert len(set(codes(torch.tensor([-0.0, 0.0])).tolist())) == 1
    for values, lost in (([best, worst], False), ([NOT_FINITE, 0], True)):
        assert pair_scores(coded(values, [True, False]), torch.tensor(1.0)).lost == lost


def hidden_score(sums: dict[str, Tensor]) -> Scored:
    """What the server computes from the first counts alone."""
    return scored_sum(sums, first_blocks(sums))


def test_pairs_are_scored_by_area_mean_loss_and_count_in_plaintext_and_hidden() -> None:
    cohort = link_cohort()
    assert cohort.links is not None
    scores = some_scores(cohort)
    label = cohort.links.label[cohort.pairs("val")].tolist()
    each = [math.log1p(math.exp(-s if edge else s)) for s, edge in zip(scores.tolist(), label, strict=True)]
    assert float(summed_loss(cohort, scores, "val")) == pytest.approx(sum(each))
    plain = pair_scores(coded_pairs(cohort, scores, "val"), summed_loss(cohort, scores, "val"))
    parts = every_score(cohort, scores, "val")
    hidden = hidden_score({name: part.sum(0) for name, part in parts.items()})
    for found, error in ((plain, 1e-12), (hidden, hidden.report["rank_error"] + 1e-12)):
        assert found.metrics["auc"] == pytest.approx(roc_auc_score(label, scores), abs=error)
        assert found.metrics["loss"] == pytest.approx(sum(each) / len(each))
        assert found.count == len(each)
        assert not found.lost
    client = cohort.client[cohort.links.row[cohort.pairs("val")]]
    for k in range(CLIENTS):
        own = [x for x, at in zip(each, client.tolist(), strict=True) if at == k]
        assert float(parts["loss"][k]) == pytest.approx(sum(own))
        edges = sum(x for x, at in zip(label, client.tolist(), strict=True) if at == k)
        assert parts["counts"][k].sum((0, 2)).tolist() == [len(own) - edges, edges]


@pytest.mark.parametrize("shape", ["as drawn", "all alike", "within a millionth", "far apart"])
@pytest.mark.parametrize("form", ["plaintext", "simulated"])
def test_the_area_of_an_evaluation_is_that_of_scikit_learn(form: str, shape: str) -> None:
    cohort = link_cohort()
    assert cohort.links is not None
    drawn = some_scores(cohort)
    changed = {"all alike": 0 * drawn + 3, "within a millionth": 1 + 2e-7 * drawn, "far apart": 1e5 * drawn}
    scores = changed.get(shape, drawn)
    fed, config = (
        Federation([range(CLIENTS)], simulated=True),
        FEDAVG.configure(protection("aggregation", form)),
    )
    data, located = fed.locate("clients", "data", [cohort]), fed.locate("clients", "scores", [scores])
    prepared = LINKS.prepare(fed, data, Task(2, 2, LINK_PREDICTION), config)
    _, at_server = LINKS.score(fed, data, located, "val", "val", prepared, config)
    truth = roc_auc_score(cohort.links.label[cohort.pairs("val")], scores)
    assert at_server.parts[0].metrics["auc"] == pytest.approx(truth, abs=1e-3)


def test_a_score_that_is_not_finite_is_the_last_one_and_not_in_the_loss() -> None:
    cohort = link_cohort()
    scores = some_scores(cohort)
    whole = float(every_score(cohort, scores, "val")["loss"].sum())
    bad = scores.clone()
    bad[0] = math.nan
    sums = {name: part.sum(0) for name, part in every_score(cohort, bad, "val").items()}
    assert sums["lost"].sum() == 1
    assert hidden_score(sums).lost
    assert hidden_score(sums).count == len(scores)
    assert cohort.links is not None
    sign = -1 if bool(cohort.links.label[cohort.pairs("val")[0]]) else 1
    assert float(sums["loss"]) == pytest.approx(whole - math.log1p(math.exp(sign * float(scores[0]))))


def test_an_edge_and_another_pair_without_a_score_lose_the_run_as_one_of_them_does() -> None:
    for lost in ([0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [3.0, 3.0]):
        counts = torch.zeros(1, 2, BINS)
        counts[..., 7] = 5
        assert hidden_score({"counts": counts, "lost": torch.tensor(lost), "loss": torch.tensor(1.0)}).lost


def test_without_edges_or_without_others_there_is_no_curve_and_no_area() -> None:
    for labels in ([True, True], [False, False]):
        found = pair_scores(coded([1, 2], labels), torch.tensor(3.0))
        assert math.isnan(found.metrics["auc"])
        assert found.metrics["loss"] == 1.5
        assert found.report["test_roc"] == []
    nothing = pair_scores(coded([], []), torch.tensor(0.0))
    assert math.isnan(nothing.metrics["loss"])
    assert nothing.count == 0


@pytest.mark.parametrize("count", [2, CURVE - 1, CURVE, CURVE + 1, 3000])
def test_the_curve_is_the_exact_one_at_200_points_at_most(count: int) -> None:
    """Each pair has a code of its own."""
    rng = np.random.default_rng(count)
    label = rng.random(count) < 0.5
    label[:2] = False, True
    code = rng.permutation(count) - count // 2
    curve = pair_scores(coded(code.tolist(), label.tolist()), torch.tensor(0.0)).report["test_roc"]
    false, true, _ = roc_curve(label, -code, drop_intermediate=False)
    exact = list(zip(false.tolist(), true.tolist(), strict=True))
    assert (curve[0], curve[-1]) == ([0.0, 0.0], [1.0, 1.0])
    assert len(curve) == 1 + min(count, CURVE)
    assert {tuple(np.round(point, 9)) for point in curve} <= {tuple(np.round(point, 9)) for point in exact}
    assert curve == sorted(curve)


def link_task() -> Task:
    return Task(2, 1, LINK_PREDICTION)


class Mail:
    """The server's link to workers, which send the entries of a table by worker and transfer."""

    def __init__(self, sent: dict[tuple[int, str], Any]) -> None:
        self.sent = sent

    def send(self, to: int, key: str, message: bytes) -> None:
        raise AssertionError("an evaluation sends nothing to the clients")

    def recv(self, sender: int, key: str) -> bytes:
        return encode(self.sent[sender, key.split("/")[2]], grad=(), dtypes=())


def test_a_clients_loss_that_is_not_finite_loses_the_run_and_is_not_refused() -> None:
    """Across a link: it is the run that diverges, and the metrics say so."""
    cohorts = [link_cohort([k]) for k in range(CLIENTS)]
    sent: dict[tuple[int, str], Any] = {}
    for worker, cohort in enumerate(cohorts):
        scores = some_scores(cohort)
        if worker == 1:
            scores[0] = math.nan
        for target in ("val", "test"):
            rows = pair_rows(cohort, target)
            sent[worker, f"{target}_pairs"] = rows.ids, torch.tensor([len(rows.ids)])
        sent[worker, "val_pair_scores"] = coded_pairs(cohort, scores, "val")
        sent[worker, "val_pair_loss"] = summed_loss(cohort, scores, "val")
    fed = Federation([(k,) for k in range(CLIENTS)], here=[], link=Mail(sent))
    data, scores_there = (fed.locate("clients", name, []) for name in ("data", "scores"))
    config = FEDAVG.configure({})
    prepared = LINKS.prepare(fed, data, link_task(), config)
    _, found = LINKS.score(fed, data, scores_there, "val", "val", prepared, config)
    assert found.parts[0].lost
    assert math.isnan(found.parts[0].metrics["loss"])
    assert found.parts[0].count == sum(len(cohort.pairs("val")) for cohort in cohorts)


@pytest.mark.parametrize("aggregation", ["plaintext", "secure"])
def test_scores_of_pairs_are_sent_in_plaintext_only_where_sums_are(aggregation: str) -> None:
    fed, cohort = Federation([range(CLIENTS)], simulated=True), link_cohort()
    config = FEDAVG.configure({"aggregation": aggregation})
    data = fed.locate("clients", "data", [cohort])
    prepared = LINKS.prepare(fed, data, link_task(), config)
    given = fed.locate("clients", "scores", [some_scores(cohort)])
    own, found = LINKS.score(fed, data, given, "val", "val", prepared, config)
    assert own is None
    assert found.parts[0].count == len(cohort.pairs("val"))
    names = {entry.name: entry for entry in fed.ledger.entries}
    if aggregation == "plaintext":
        assert {*names} == {"val_pairs", "test_pairs", "val_pair_scores", "val_pair_loss"}
        assert names["val_pair_scores"].bytes == 5 * len(cohort.pairs("val"))
        assert names["test_pairs"].bytes == 8 * len(cohort.pairs("test"))
    else:
        assert {name.partition("/")[0] for name in names} == {"scores", "val_refine", "val_bins"}
        assert names["scores/masked"].protection == "simulated"
    assert LINKS.decides(config, prepared) == "auc"


def test_scores_ask_for_no_gradient_even_where_transfers_are_recorded() -> None:
    fed, cohort = Federation([range(CLIENTS)]), link_cohort()
    data, sensors = fed.locate("clients", "data", [cohort]), sensor_data(fed, [True] * 3)
    links, forecasts = FEDAVG.configure({}), forecast_config("plaintext", "masked")
    prepared = LINKS.prepare(fed, data, link_task(), links)
    with fed.tape():
        scores = fed.clients.run(as_leaves, fed.locate("clients", "scores", [some_scores(cohort)]))
        forecast = fed.clients.run(as_leaves, fed.locate("clients", "forecast", [forecast_of("val")]))
        LINKS.score(fed, data, scores, "val", "val", prepared, links)
        FORECASTS.score(fed, sensors, forecast, "val", "val", None, forecasts)
        fed.backward(fed.locate("server", "loss", [torch.zeros(())]))
    assert {entry.name for entry in fed.ledger.entries} == {
        "val_pairs", "test_pairs", "val_pair_scores", "val_pair_loss", "val_errors",
    }  # fmt: skip


# ---- class weights -----------------------------------------------------------------------------------------


def node_cohort(fed: Federation) -> Located:
    """Nodes to train on: 1 of class 0, 3 of class 1, none of class 2; two of three clients have them."""
    y = np.array([0, 1, 1, 1, 2, 2])
    train = np.array([True] * 4 + [False] * 2)
    none = np.zeros(6, dtype=bool)
    graph = make_graph("g", np.ones((6, 1)), y, [], num_classes=3)
    assigned = from_assignment(graph, np.array([0, 0, 1, 1, 0, 2]), num_clients=3)
    cohorts = [
        make_cohort(graph, Split("s", train, none, ~train), assigned, fed.workers[h]) for h in fed.here
    ]
    return fed.locate("clients", "data", cohorts)


@pytest.mark.parametrize("form", ["plaintext", "real", "simulated"])
@pytest.mark.parametrize("workers", [[(0, 1, 2)], [(0,), (1,), (2,)]], ids=["stacked", "one at a time"])
def test_every_client_has_the_same_weights_and_each_class_that_occurs_weighs_the_same(
    workers: list[tuple[int, ...]], form: str
) -> None:
    """4 / (2 * 1) and 4 / (2 * 3), and 1 for a class without nodes; agreed on before training."""
    chosen: dict[str, Any] = protection("aggregation", form)
    config = FEDAVG.configure({"class_weights": "balanced", **chosen})
    fed = Federation(workers, simulated=is_simulated(config))
    data = agree_class_weights(fed, node_cohort(fed), Task(1, 3), config)
    for cohort in data.parts:
        assert cohort.class_weights.tolist() == pytest.approx([2, 2 / 3, 1])
        assert cohort.class_weights.dtype == torch.get_default_dtype()
    entries = {entry.name: entry for entry in fed.ledger.entries}
    assert {entry.phase for entry in entries.values()} == {"eval"}
    assert (entries["class_weights"].protection, entries["class_weights"].bytes) == ("aggregate", 3 * 3 * 4)
    if form == "plaintext":
        assert {name: entry.protection for name, entry in entries.items()} == {
            "class_counts": "plaintext", "class_weights": "aggregate",
        }  # fmt: skip
    else:
        masked = "aggregate" if form == "real" else "simulated"
        assert entries["class_counts/masked"].protection == masked


def test_class_weights_are_agreed_on_for_node_classification_where_they_are_asked_for() -> None:
    fed = Federation([(0, 1, 2)])
    data = node_cohort(fed)
    assert agree_class_weights(fed, data, Task(1, 3), FEDAVG.configure({})) is data
    balanced = FEDAVG.configure({"class_weights": "balanced"})
    assert LINKS.agree(fed, data, link_task(), balanced) is data
    assert fed.ledger.entries == []


def test_a_class_of_one_node_weighs_as_much_as_one_of_many() -> None:
    weights = balanced_weights(SCORE_UNITS * torch.tensor([1, 99, 0, 0]))
    assert weights.tolist() == pytest.approx([50, 50 / 99, 1, 1])


# ---- what stands first -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "details", "known", "expected"),
    [
        (CLASSIFICATION, {"headline": ["auc", "f"]}, ["auc", "accuracy"], ["auc"]),
        (CLASSIFICATION, {"headline": ["f"]}, ["auc"], ["accuracy", "macro_f1"]),
        (CLASSIFICATION, {"headline": "auc"}, ["a", "auc"], ["accuracy", "macro_f1"]),
        (CLASSIFICATION, {"headline": 3}, ["auc"], ["accuracy", "macro_f1"]),
        (CLASSIFICATION, {}, ["auc"], ["accuracy", "macro_f1"]),
        (LINK_PREDICTION, {"headline": ["loss"]}, ["loss", "auc"], ["auc"]),
        (FORECASTING, {}, ["mae"], ["rmse"]),
        ("a task of tomorrow", {"headline": ["loss"]}, ["loss"], ["accuracy"]),
    ],
)
def test_the_metrics_that_stand_first_are_those_that_a_run_names_and_has(
    task: str, details: dict[str, Any], known: list[str], expected: list[str]
) -> None:
    """Of node classification; other tasks have one that decides."""
    assert headline(task, details, known) == expected
