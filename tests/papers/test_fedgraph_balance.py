"""FedGraph's balanced policy: mini-batches that fit in the same time at every client, with the requests that
clients answer for each other (docs/papers/fedgraph.md, "Ours: balance the clients' times")."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import (
    ThreeWorkers,
    World,
    cohorts_of,
    config_of,
    last_round_stands,
    make_world,
    run_local,
    run_processes,
)

from graphfed.data.partitions.partition import partition
from graphfed.errors import InputError
from graphfed.methods.fedgraph.client_graphs import SampledNeighbours, build_graph, sample_neighbours
from graphfed.methods.fedgraph.policy.ddpg import prepare_federation
from graphfed.methods.fedgraph.round_time import (
    FIRST_FRACTIONS,
    MEASURED_ROUNDS,
    NOISE,
    OMISSION,
    OVERLAPS,
    REPEATS,
    TimeModel,
    add_measurement,
    balanced_decision,
    best_balance,
    drawn_fraction,
    first_balance,
    fit_time_model,
    needed_fraction,
    solve_balance,
)
from graphfed.methods.registry import get_method
from graphfed.runs.config import make_config
from graphfed.studies.plan import InputCache

METHOD = get_method("fedgraph")
ROUNDS = MEASURED_ROUNDS + 2
PLAIN = {"dropout": 0.0, "optimizer": "sgd", "rounds": ROUNDS}
BALANCED = {**PLAIN, "policy": "balanced", "round_time": 0.4}


def model_of(base: Any, own: Any, answers: Any, overlap: Any = None) -> TimeModel:
    columns = (base, own, answers, overlap or [1.0] * len(base))
    return TimeModel(*(torch.tensor(column, dtype=torch.float64) for column in columns))


def overlapping(seed: int = 6) -> World:
    world = make_world(seed, nodes=60)
    return World(world.graph, world.split, partition(world.graph, "overlapping", 3, seed))


# ---- the solution ------------------------------------------------------------------------------------------


def test_where_nobody_answers_every_client_fills_the_round_or_draws_all_of_its_nodes() -> None:
    """(T - b) / o: (1 - 0.2) / 1.6 = 0.5, (1 - 0.5) / 2 = 0.25, and 1 where all nodes take 0.7 of T = 1."""
    model = model_of([0.2, 0.5, 0.1], [1.6, 2.0, 0.6], [0.0, 0.0, 0.0])
    found, _ = solve_balance(model, torch.tensor([100, 50, 10]), 1.0)
    assert found.tolist() == pytest.approx([0.5, 0.25, 1.0], rel=1e-9)


def test_a_slow_client_draws_less_because_it_answers_the_fast_one() -> None:
    """t_2 = s_2 + u = 1 with s_1 = 1 and u = (1 + s_2) / 2: s_2 = 1/3. Without the answers it would be 1."""
    model = model_of([0.0, 0.0], [0.1, 1.0], [0.0, 1.0])
    counts = torch.tensor([10, 10])
    found, _ = solve_balance(model, counts, 1.0)
    assert found.tolist() == pytest.approx([1.0, 1 / 3], rel=1e-9)
    assert model.seconds(found, counts)[1] == pytest.approx(1.0)


def test_a_fast_client_draws_less_where_a_slow_one_has_only_time_to_answer() -> None:
    """t_2 = s_2 + 2 u <= 0.5 with s_2 >= 1/10: u = 0.2, so that s_1 = 0.3, though it has time for all."""
    model = model_of([0.0, 0.0], [0.1, 1.0], [0.0, 2.0])
    found, _ = solve_balance(model, torch.tensor([10, 10]), 0.5)
    assert found.tolist() == pytest.approx([0.3, 0.1], rel=1e-6)


def test_nodes_that_several_drawn_nodes_need_cost_once() -> None:
    """1 - (1 - s)^2 = 0.75 for s = 0.5."""
    found, _ = solve_balance(model_of([0.25], [1.0], [0.0], [2.0]), torch.tensor([1000]), 1.0 - 1e-12)
    assert found.tolist() == pytest.approx([1 - (1 - 0.75) ** 0.5], rel=1e-6)


def test_a_round_that_is_too_short_for_one_node_each_has_one_node_each() -> None:
    model = model_of([1.0, 2.0], [1.0, 1.0], [1.0, 1.0])
    counts = torch.tensor([4, 5])
    for duration in (0.1, float(model.seconds(1 / counts.double(), counts).max())):
        assert solve_balance(model, counts, duration)[0].tolist() == pytest.approx([0.25, 0.2])


def test_a_client_without_training_nodes_neither_draws_nor_limits_anybody() -> None:
    model = model_of([0.1, 0.0], [0.0, 2.0], [0.1, 0.0])
    counts = torch.tensor([0, 50])
    found, _ = solve_balance(model, counts, 1.0)
    assert found.tolist() == pytest.approx([1.0, 0.5])
    balance = {**first_balance(counts), "next": found}
    assert balanced_decision(balance, counts, 2).tolist() == [[0.0, 1.0, 1.0], [25.0, 1.0, 1.0]]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_fractions_fit_with_more_nodes(seed: int) -> None:
    """Against all fractions on a grid, three clients; and the solution fits itself."""
    draws = torch.Generator().manual_seed(seed)
    base, own, answers = torch.rand(3, 3, generator=draws, dtype=torch.float64)
    overlap = torch.tensor(OVERLAPS, dtype=torch.float64)[torch.randint(len(OVERLAPS), (3,), generator=draws)]
    model = TimeModel(base, own, answers * (seed % 3), overlap)
    counts = torch.tensor([20, 20, 20])
    shortest = float(model.seconds(torch.full((3,), 1 / 20, dtype=torch.float64), counts).max())
    longest = float(model.seconds(torch.ones(3, dtype=torch.float64), counts).max())
    duration = shortest + 0.4 * (longest - shortest)
    found, _ = solve_balance(model, counts, duration)
    assert float(model.seconds(found, counts).max()) <= duration * (1 + 1e-9)
    assert bool((found >= 1 / 20 - 1e-12).all())
    assert bool((found <= 1).all())
    tried = torch.tensor([*product(range(1, 21), repeat=3)], dtype=torch.float64) / 20
    drawn = drawn_fraction(tried, counts)
    requested = model.answers * needed_fraction(drawn[:, None], model.overlap)
    seconds = model.base + model.own * needed_fraction(tried, model.overlap) + requested
    most = float(drawn[seconds.amax(1) <= duration].max())
    assert float(drawn_fraction(found, counts)) >= most - 1e-9


def test_a_client_with_no_time_to_answer_is_sent_fewer_requests_and_limits_nobody() -> None:
    """t_2 = s_2 + 2 q_2 u <= 0.5 with s_2 = 1/10; s_1 = 1 fits, so u = 0.55 and q_2 = 0.4 / (2 * 0.55)."""
    model = model_of([0.0, 0.0], [0.1, 1.0], [0.0, 2.0])
    counts = torch.tensor([10, 10])
    fractions, requests = solve_balance(model, counts, 0.5, least_requests=0.0)
    assert fractions.tolist() == pytest.approx([1.0, 0.1], rel=1e-6)
    assert requests.tolist() == pytest.approx([1.0, 0.4 / 1.1], rel=1e-6)
    assert float(model.seconds(fractions, counts, requests).max()) <= 0.5 + 1e-9
    assert torch.equal(solve_balance(model, counts, 3.0, least_requests=0.0)[1], torch.ones(2).double())


def test_all_nodes_are_drawn_and_all_requests_answered_where_that_hardly_takes_time() -> None:
    counts = torch.tensor([100, 50])
    fixed = best_balance(model_of([1.0, 0.9], [0.01, 0.02], [0.01, 0.01]), counts)
    assert [part.tolist() for part in fixed] == [[1.0, 1.0], [1.0, 1.0]]
    linear, _ = best_balance(model_of([0.01, 0.01], [1.0, 2.0], [0.0, 0.0]), counts)
    assert float(linear.max()) < 1


@pytest.mark.parametrize("seed", range(10))
def test_the_best_duration_promises_no_longer_training_than_others(seed: int) -> None:
    """Of any other fractions and requests on a grid, to the steps of the durations that are compared."""
    draws = torch.Generator().manual_seed(seed)
    base, own, answers = torch.rand(3, 2, generator=draws, dtype=torch.float64)
    model = TimeModel(base, own, answers, torch.tensor([1.0, 3.0], dtype=torch.float64))
    counts = torch.tensor([20, 20])

    def promised(fractions: Tensor, requests: Tensor) -> float:
        u, q = (float(drawn_fraction(part, counts)) for part in (fractions, requests))
        lasts = float(model.seconds(fractions, counts, requests).max())
        return lasts * (1 + NOISE * (1 / u - 1) + OMISSION * (1 - q))

    grid = [n / 20 for n in range(1, 21)]
    others = min(
        promised(*torch.tensor([[s_1, s_2], [1.0, 1.0]], dtype=torch.float64))
        for s_1, s_2 in product(grid, repeat=2)
    )
    assert promised(*best_balance(model, counts)) <= others * 1.03


# ---- the model ---------------------------------------------------------------------------------------------


def measured(model: TimeModel, counts: Tensor, round_time: float) -> dict[str, Tensor]:
    """Measure rounds whose seconds are those of a model."""
    balance = first_balance(counts)
    for _ in range(MEASURED_ROUNDS + 1):
        decision = balanced_decision(balance, counts, 2)
        seconds = model.seconds(decision[:, 0] / counts, counts)
        balance = add_measurement(balance, decision, seconds, counts, round_time)
    return balance


def test_a_model_of_this_form_is_found_again_and_its_solution_is_what_is_decided() -> None:
    model = model_of([0.1, 0.2, 0.3, 0.2], [2.0, 1.0, 0.5, 3.0], [0.5, 0.0, 1.0, 0.3], [2.0, 1.0, 4.0, 3.0])
    counts = torch.tensor([1000, 2000, 1500, 800])
    balance = measured(model, counts, 0.4)
    assert int(balance["measured"]) == MEASURED_ROUNDS
    shortest, longest = (float(balance["seconds"][n].max()) for n in (1, 0))
    duration = shortest + 0.4 * (longest - shortest)
    found = fit_time_model(balance["fractions"], balance["seconds"], counts, duration)
    for name in ("base", "own", "answers", "overlap"):
        assert torch.allclose(getattr(found, name), getattr(model, name), rtol=1e-3, atol=1e-3), name
    assert torch.allclose(balance["next"], solve_balance(model, counts, duration)[0], rtol=1e-2)
    seconds = model.seconds(balance["next"], counts)
    assert float(seconds.max()) == pytest.approx(duration, rel=1e-3)


def test_without_a_duration_the_measured_rounds_find_the_best_one() -> None:
    model = model_of([0.1, 0.2, 0.3, 0.2], [2.0, 1.0, 0.5, 3.0], [0.5, 0.0, 1.0, 0.3], [2.0, 1.0, 4.0, 3.0])
    counts = torch.tensor([1000, 2000, 1500, 800])
    balance = first_balance(counts, limits_requests=True)
    for _ in range(MEASURED_ROUNDS + 1):
        decision = balanced_decision(balance, counts, 2)
        requests = decision[0, 3:]
        seconds = model.seconds(decision[:, 0] / counts, counts, requests)
        balance = add_measurement(balance, decision, seconds, counts)
    assert decision.shape == (4, 1 + 2 + 4)
    assert balance["fractions"][:2].unique(dim=1).flatten().tolist() == [*FIRST_FRACTIONS]
    expected, _ = best_balance(model, counts)
    found, wanted = (float(model.seconds(part, counts).max()) for part in (balance["next"], expected))
    assert found == pytest.approx(wanted, rel=0.1)


def test_noise_makes_no_coefficient_negative() -> None:
    draws = torch.Generator().manual_seed(0)
    for _ in range(10):
        fractions = torch.rand(MEASURED_ROUNDS, 5, generator=draws, dtype=torch.float64)
        seconds = torch.rand(MEASURED_ROUNDS, 5, generator=draws, dtype=torch.float64) + 0.1
        model = fit_time_model(fractions, seconds, torch.full((5,), 10), 0.5)
        assert all(bool((part >= 0).all()) for part in (model.base, model.own, model.answers))


def test_the_order_of_the_clients_orders_the_decisions_and_changes_nothing_else() -> None:
    order = torch.tensor([2, 0, 3, 1])
    model = model_of([0.1, 0.2, 0.3, 0.2], [2.0, 1.0, 0.5, 3.0], [0.5, 0.0, 1.0, 0.3])
    counts = torch.tensor([100, 200, 150, 80])
    other = TimeModel(model.base[order], model.own[order], model.answers[order], model.overlap[order])
    one, two = measured(model, counts, 0.3), measured(other, counts[order], 0.3)
    assert torch.allclose(one["fractions"][:, order], two["fractions"], atol=1e-12)
    assert torch.allclose(one["next"][order], two["next"], atol=1e-9)


def test_a_single_disturbance_of_repeated_measurements_decides_nothing() -> None:
    model = model_of([0.1, 0.2, 0.3], [2.0, 1.0, 0.5], [0.5, 0.0, 1.0], [2.0, 1.0, 4.0])
    counts = torch.tensor([100, 200, 150])
    balance = first_balance(counts, REPEATS)
    for number in range(MEASURED_ROUNDS * REPEATS + 2):
        decision = balanced_decision(balance, counts, 2)
        seconds = model.seconds(decision[:, 0] / counts, counts)
        disturbed = seconds * 50 if number % REPEATS == 0 else seconds  # as in the first round of a process
        balance = add_measurement(balance, decision, disturbed, counts, 0.4)
    assert int(balance["measured"]) == MEASURED_ROUNDS * REPEATS
    once = measured(model, counts, 0.4)
    assert torch.equal(balance["fractions"][::REPEATS], once["fractions"])
    assert torch.equal(balance["next"], once["next"])


# ---- in training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["random", "overlapping"])
@pytest.mark.parametrize("round_time", [0.2, 0.5])
@pytest.mark.sampled(3)
def test_the_modelled_rounds_last_what_was_asked_to_ten_percent(partition: str, round_time: float) -> None:
    """Mean of the rounds after those that are measured. Samples differ from round to round, and the slowest
    of several clients is slower than each is in the mean."""
    config = make_config(
        "fedgraph",
        data="social",
        clients=8,
        partition=partition,
        split="random_plain:0.6,0.2,0.2",
        settings={"data.num_nodes": 2000, "policy": "balanced", "round_time": round_time},
    )
    federation = prepare_federation(config, InputCache().get(config))
    state = federation.first_state(config.settings, {})
    ends = [0.0]
    for number in range(1, MEASURED_ROUNDS + 6):
        with federation.fed.phase("train", round_number=number):
            state = METHOD.round(federation.fed, state, config.settings, number)
        (facts,) = state.values["facts"].parts
        ends.append(float(facts["modelled_seconds"]))
    lasted = [after - before for before, after in pairwise(ends)]
    duration = lasted[1] + round_time * (lasted[0] - lasted[1])
    later = lasted[MEASURED_ROUNDS:]
    assert sum(later) / len(later) == pytest.approx(duration, rel=0.1)


@pytest.mark.parametrize("round_time", [0.4, None])
@pytest.mark.parametrize("placement", ["one at a time", pytest.param("processes", marks=pytest.mark.slow)])
def test_it_agrees_in_all_placements_and_sends_what_other_policies_send(
    placement: str, round_time: float | None, request: pytest.FixtureRequest
) -> None:
    world, settings = last_round_stands(overlapping()), {**BALANCED, "round_time": round_time}
    together, fed = run_local("fedgraph", world, **settings)
    if placement == "processes":
        workers: ThreeWorkers = request.getfixturevalue("three_clients")
        other, ledger = run_processes("fedgraph", world, workers, **settings)
    else:
        other, oracle = run_local("fedgraph", world, placement, **settings)
        ledger = oracle.ledger
    for name, w in together.state.weights.parts[0].items():
        assert torch.allclose(w, other.state.weights.parts[0][name], rtol=0, atol=1e-9), name
    assert fed.ledger.to_json() == ledger.to_json()
    _, constant = run_local("fedgraph", world, **PLAIN, policy="constant", probability=1.0)
    sent = [{(entry.phase, entry.name) for entry in one.ledger.entries} for one in (fed, constant)]
    assert sent[0] == sent[1]
    # The server sends a float64 for each client, training size and layer, and for each client to ask
    policy = [entry for entry in fed.ledger.entries if entry.name == "fedgraph/policy"]
    columns = 1 + 2 + (3 if round_time is None else 0)
    assert sum(int(entry.received.sum()) for entry in policy) == 8 * 3 * columns * ROUNDS


@pytest.mark.parametrize("ratio", [True, False])
def test_no_row_is_requested_from_a_client_that_is_not_to_be_asked(ratio: bool) -> None:
    config = config_of(METHOD, **{**BALANCED, "round_time": None})
    (cohort,) = cohorts_of(overlapping(), [[0, 1, 2]], config)
    graph = build_graph(cohort, config.sharing, False)
    rows, every = torch.arange(graph.num_rows), torch.ones(3, dtype=torch.float64)
    sampler = "independent" if ratio else "independent_ht"

    def sampled(requests: Tensor | None) -> tuple[SampledNeighbours, Tensor]:
        return sample_neighbours(graph, rows, every, sampler, 1, True, key=3, requests=requests)

    whole, is_requested = sampled(None)
    same, _ = sampled(torch.ones(3, 3, dtype=torch.float64))
    assert torch.equal(whole.value, same.value)
    requests = torch.tensor([[1.0, 0.0, 1.0]] * 3, dtype=torch.float64)
    some, is_asked = sampled(requests)
    assert bool(is_requested.all())
    assert is_asked.tolist() == (graph.owner != 1).tolist()
    assert 0 < int(is_asked.sum()) < len(is_asked)
    # Eq. (7): a row with a neighbour left weighs those left by all over left; 1 / q by 1
    lost = whole.counts - some.counts
    row = torch.repeat_interleave(rows, some.counts)
    others = (whole.counts - 1).double() / (some.counts - 1).clamp(min=1)
    is_self = some.column == row
    factor = torch.where(is_self, 1.0, others[row]) if ratio else torch.ones(len(row)).double()
    assert bool((lost > 0).any())
    kept = torch.ones(len(whole.column), dtype=torch.bool)
    is_remote = whole.column >= graph.num_rows
    kept[is_remote] = is_asked[whole.column[is_remote] - graph.num_rows]
    assert torch.allclose(some.value.double(), whole.value[kept].double() * factor)


def test_with_the_clock_of_its_machine_each_client_sends_its_own_seconds_and_they_decide(
    three_clients: ThreeWorkers,
) -> None:
    world, rounds = last_round_stands(overlapping()), MEASURED_ROUNDS * REPEATS
    settings = {**BALANCED, "clock": "wall", "rounds": rounds}
    outcome, ledger = run_processes("fedgraph", world, three_clients, **settings)
    (entry,) = [entry for entry in ledger.entries if entry.name == "fedgraph/measured_seconds"]
    assert entry.sent.tolist() == [8 * rounds] * 3
    totals = {
        name: [0.0, *(line["facts"][f"{name}_seconds"] for line in outcome.history)]
        for name in ("modelled", "measured")
    }
    lasted = {name: [after - before for before, after in pairwise(ends)] for name, ends in totals.items()}
    assert all(seconds > 0 for seconds in lasted["measured"])
    assert sum(lasted["measured"]) < outcome.seconds["train"]
    # Three rounds with all nodes and three with one node each, which are shorter by the time model too
    assert lasted["modelled"][:REPEATS] == pytest.approx([lasted["modelled"][0]] * REPEATS)
    assert max(lasted["modelled"][REPEATS : 2 * REPEATS]) < 0.9 * lasted["modelled"][0]


def test_clients_that_share_a_process_cannot_measure_their_own_seconds() -> None:
    for placement in ("stacked", "one at a time"):
        with pytest.raises(InputError, match=r"clock=wall cannot be used .* set runtime=processes"):
            run_local("fedgraph", overlapping(), placement, **BALANCED, clock="wall")


def test_all_neighbours_are_kept_and_the_first_round_has_all_nodes() -> None:
    world = make_world(3)
    balanced, _ = run_local("fedgraph", last_round_stands(world), **{**BALANCED, "rounds": 1})
    full, _ = run_local("fedgraph", last_round_stands(world), **{**PLAIN, "rounds": 1}, policy="full")
    for name, w in full.state.weights.parts[0].items():
        assert torch.equal(balanced.state.weights.parts[0][name], w)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, float("nan")])
def test_a_duration_that_is_no_fraction_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"round_time=.* cannot be used: .*expected"):
        make_config("fedgraph", settings={"policy": "balanced", "round_time": value})


def test_a_policy_that_is_not_learned_takes_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"policy_file='p' cannot be used with policy=balanced"):
        make_config("fedgraph", settings={"policy": "balanced", "policy_file": "p"})


def test_secure_aggregation_hides_the_weights_and_changes_no_decision() -> None:
    world = last_round_stands(overlapping())
    plain, _ = run_local("fedgraph", world, **BALANCED)
    hidden, _ = run_local("fedgraph", world, **BALANCED, aggregation="secure", protocols="simulated")
    assert config_of(METHOD, **BALANCED).sampling.round_time == 0.4
    for one, other in zip(
        plain.state.values["balance"].parts, hidden.state.values["balance"].parts, strict=True
    ):
        assert torch.equal(one["fractions"], other["fractions"])
