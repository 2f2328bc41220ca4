"""The benchmarks run, check that both sides of every ratio computed the same thing, and write their results.

Sizes are tiny and no time is looked at.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


def run(name: str, out: Path, *options: str) -> dict[str, Any]:
    """The result file of one benchmark at its tiny size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRAPHFED_DATA", raising=False)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.syspath_prepend(str(BENCHMARKS))
        import_module(name).main(["--tiny", "--out", str(out), *options])
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.fixture(scope="module")
def tax(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result = run("federation_tax", tmp_path_factory.mktemp("tax") / "tax.json")
    (graph,) = result["graphs"]
    return {**graph, "machine": result["machine"]}


def test_every_result_names_its_machine_versions_threads_and_load(tax):
    machine = tax["machine"]
    assert machine["cores"] >= 1
    assert machine["threads"] == 1
    assert {"python", "torch", "torch_geometric", "numpy"} <= set(machine["versions"])
    assert len(machine["load_before"]) == 3


def test_stacked_clients_and_clients_one_at_a_time_are_compared_before_they_are_timed(tax):
    compared = [name for name in tax["largest_differences"] if "one at a time" in name]
    timed = {name.split(",")[0] for name in tax["cases"] if "K=" in name and "PyG" not in name}
    assert len(compared) == len(timed) == 8
    assert max(tax["largest_differences"].values()) <= 1e-9


def test_graphfed_and_the_pyg_programs_take_the_same_steps(tax):
    with_pyg = {name: gap for name, gap in tax["largest_differences"].items() if "PyG" in name}
    assert len(with_pyg) == 2
    assert max(with_pyg.values()) <= 1e-9


def test_the_unpruned_central_baseline_computes_every_row_and_the_pruned_one_fewer(tax):
    every = tax["cases"]["central, 1 step, every row"]["step"]["rows"]
    pruned = tax["cases"]["central, 1 step"]["step"]["rows"]
    assert every == [tax["graph"]["nodes"]] * 3
    assert pruned[-1] == tax["graph"]["training_nodes"]
    assert all(a < b for a, b in zip(pruned, every, strict=True))


def test_dropping_cross_client_edges_makes_fedavg_steps_smaller_and_fedgcn_keeps_every_edge(tax):
    cases = tax["cases"]
    fedavg, gcn = (cases[f"{name} K=10, 1 step"]["step"]["edge_entries"] for name in ("fedavg", "fedgcn"))
    assert sum(fedavg) < sum(cases["central, 1 step"]["step"]["edge_entries"])
    # The sums of the first layer are in part computed before training, so the second layer shows it.
    assert gcn[-1] == cases["fedgcn K=1, 1 step"]["step"]["edge_entries"][-1]


@pytest.mark.on_demand
def test_the_exchange_of_separate_graphs_is_empty_in_the_measurement_of_dense_graphs(tmp_path: Path):
    result = run("dense_graph", tmp_path / "dense.json", "--cases", "fedavg, countries", "fedgcn, countries")
    assert result["cases"]["fedgcn, countries"]["setup_mb"] == 0
    assert result["ratios"]["countries"]["sent"] == 1


def test_a_difference_between_the_sides_stops_a_benchmark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    ours, reference = ({"w": torch.tensor([x])} for x in (1.0, 1.1))
    with pytest.raises(AssertionError, match=r"two sides: weights differ by 1\.00e-01"):
        import_module("measure").assert_equal("two sides", ours, reference)


@pytest.mark.on_demand
def test_growth_measures_every_size_in_a_process_of_its_own_and_reports_exponents(tmp_path):
    result = run("growth", tmp_path / "growth.json")
    group = result["groups"]["fedavg, 10 clients"]
    assert [row["nodes"] for row in group["rows"]] == [200, 400]
    assert [row["edges"] for row in group["rows"]] == [1000, 2000]
    assert set(group["exponents"][0]) == {"from", "to", "round", "setup", "memory above the imports"}
    assert all(row["peak_mb"]["run"] > row["peak_mb"]["imports"] > 0 for row in group["rows"])
    assert group["rows"][-1]["profile"]["python"]
    # Every node its own client.
    assert "failed" not in result["groups"]["fedavg, one client a node"]["rows"][0]


@pytest.mark.on_demand
def test_the_whole_command_is_measured_from_outside_with_its_imports_and_memory(tmp_path):
    result = run("whole_command", tmp_path / "whole.json")
    (only,) = result["runs"]
    assert only["seconds"] > only["own_seconds"]["total"]
    assert "torch" in result["import_seconds"]
    assert result["rounds"] == 5
    if result["memory_mb"]:
        assert result["memory_mb"]["run"] > result["memory_mb"]["python"]


def test_the_comparison_of_methods_has_the_mean_and_deviation_of_each(tmp_path: Path) -> None:
    found = run("comparison", tmp_path / "comparison.json")
    assert set(found["accuracy"]) == {"central", "isolated", "fedavg", "fedgcn"}
    assert all(0 < figure["mean"] < 100 and figure["std"] >= 0 for figure in found["accuracy"].values())


@pytest.mark.on_demand
def test_personalised_accuracies_are_of_the_settings_that_validation_chose(tmp_path: Path) -> None:
    found = run("personalised", tmp_path / "personalised.json")
    rows = found["methods"]
    assert list(found["program"]) == ["isolated", "fedavg", "fedpub"]
    assert list(rows) == ["isolated", "fedavg", "fedprox", "scaffold", "fedpub"]
    for row in rows.values():
        assert row["settings"] == max(row["tried"], key=lambda one: one["val"])["settings"]
        assert row["test"]["client_accuracy_min"]["mean"] <= row["test"]["client_accuracy"]["mean"]


def test_missing_neighbours_have_a_paired_difference_to_fedsage(tmp_path: Path) -> None:
    (graph,) = run("missing_neighbours", tmp_path / "missing_neighbours.json")["graphs"].values()
    rows = graph["rows"]
    assert list(rows) == ["isolated", "fedsage", "alone", "fedsage_plus", "central"]
    for name in ("alone", "fedsage_plus"):
        difference = rows[name]["over_fedsage"]
        assert difference["mean"] == pytest.approx(
            rows[name]["test"]["mean"] - rows["fedsage"]["test"]["mean"]
        )
    assert rows["fedsage_plus"]["bytes"] > rows["alone"]["bytes"] > 0


def test_payments_has_a_row_for_every_reference_and_what_edges_are_worth(tmp_path: Path) -> None:
    found = run("payments", tmp_path / "payments.json")
    rows, worth = found["rows"], found["worth"]
    assert len(rows) == 12
    halo, central = (rows[f"{name}_gine"]["average_precision"]["values"] for name in ("halo", "central"))
    assert halo == pytest.approx(central, abs=0.5)
    difference = worth["edges between banks, gine"]["mean"]
    others = rows["fedavg_gine"]["average_precision"]
    assert difference == pytest.approx(rows["halo_gine"]["average_precision"]["mean"] - others["mean"])


def test_halo_ends_with_the_accuracy_of_central_training(tmp_path: Path) -> None:
    (rows,) = run("halo", tmp_path / "halo.json")["cases"].values()
    assert rows["halo"]["test"]["values"] == pytest.approx(rows["central"]["test"]["values"], abs=0.2)
    assert rows["halo"]["setup_mb"] > rows["fedavg"]["setup_mb"]


@pytest.mark.on_demand
def test_audits_of_baselines_fedgcn_and_lumos_have_a_finding_of_every_attack(tmp_path: Path) -> None:
    cases = run("audits", tmp_path / "audits.json", "baselines")["cases"]
    assert all("membership" in case for case in cases.values())
    assert 0 < cases["fedgcn_1"]["fedgcn_features"]["value"] <= 1
    assert 0 <= cases["lumos_2"]["lumos_features"]["value"] <= 1


@pytest.mark.on_demand
def test_fedgats_message_is_measured_with_and_without_encryption(tmp_path: Path) -> None:
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install '.[secure]'")
    rows = run("fedgat_encrypted", tmp_path / "encrypted.json")["rows"]
    assert rows["encrypted"]["bytes_before_training"] > rows["plaintext"]["bytes_before_training"] > 0


def test_three_clients_of_split_learning_compute_what_one_does_before_they_are_timed(tmp_path: Path) -> None:
    (graph,) = run("split_learning", tmp_path / "split.json")["graphs"]
    assert graph["largest_differences"]["three holders and one"] <= 1e-9
    assert 0 < graph["largest_differences"]["with shares"] < 1e-3
    assert set(graph["ratios"]) == {"three holders / one", "shares / clear"}


def test_sums_under_encryption_are_those_in_plaintext_before_they_are_timed(tmp_path: Path) -> None:
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install '.[secure]'")
    found = run("secure_ckks", tmp_path / "ckks.json")
    assert set(found["units"]) == {"sum", "product"}
    assert set(found["units"]["product"]["largest_errors"]) == {"fresh", "sum", "weighted sum"}
    (case,) = found["exchanges"]
    assert 0 < case["largest_error"] <= case["grid_error"]
    assert case["bytes"]["simulated"] == case["bytes"]["encrypted"] > case["bytes"]["clear"]


def test_secure_aggregation_opens_the_exact_sum_before_it_is_timed_with_and_without_clients_that_drop_out(
    tmp_path: Path,
) -> None:
    pytest.importorskip("cryptography", reason="it is not installed: pip install '.[secure]'")
    found = run("secure_aggregation", tmp_path / "secure.json")
    assert [case["gone after sharing"] for case in found["rounds"]] == [0, 1]
    for case in found["rounds"]:
        assert set(case["milliseconds"]["client"]) == {"advertise", "share keys", "mask", "unmask"}
        assert case["milliseconds"]["client"]["mask"]["count"] == 5 - case["gone after sharing"]
        assert case["bytes of a client"]["masked"] == 8 + 8 * case["parameters"]
    assert found["fedavg"]["largest_differences"]["secure and simulated"] == 0.0
    assert 0 < found["largest error of one number"] <= 2.0**-25


def test_the_number_of_clients_changes_no_metric_in_float64_and_rounding_little(tmp_path: Path) -> None:
    found = run("sapgnn_identity", tmp_path / "same.json")
    assert found["alike"]["digits"][0]["rounds"] == 4
    assert max(found["drift"]["float64, 3 holders, clear"]) < 1e-9
    assert max(found["drift"]["float32, 3 holders, shares"]) > 1e-9
    assert (tmp_path / "same.svg").read_text().count("<path")


@pytest.mark.on_demand
def test_the_ways_of_a_deployment_bring_back_every_byte_before_they_are_compared(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install '.[deploy]'")
    found = run("deployment", tmp_path / "deployment.json")
    assert set(found["transfers"]["round_trips"]) == {"1 KB", "100 KB"}
    for row in found["transfers"]["round_trips"].values():
        assert set(row["milliseconds"]) == {"link", "socket", "call", "site to site"}
        assert set(row["ratios"]) == {"link / socket", "link / call"}
    assert found["many"]["jobs"] == 1
    assert {"run", "flare", "start"} < set(found["many"]["pss_mb"]["of a process"])
    assert set(found["rounds"]["fedavg"]["milliseconds"]) == {"one at a time", "processes", "nvflare"}


def test_a_byte_that_comes_back_changed_stops_the_benchmark_of_deployments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install '.[deploy]'")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with pytest.raises(AssertionError, match="other bytes came back"):
        import_module("deployment_places")._timed(
            lambda message, key: [message, message[:-1] + b"?"], 8, 0, 20, "trip"
        )


@pytest.mark.on_demand
def test_outcomes_of_secure_protocols_are_those_of_plain_arithmetic_before_they_are_timed(
    tmp_path: Path,
) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install '.[secure]'")
    found = run("secure", tmp_path / "secure.json")
    widths = found["comparisons"]["widths"]
    assert set(widths) == {"4", "8", "16", "32"}
    assert widths["8"]["bytes_each"] <= 190
    assert [row["holders"] for row in found["maxima"]] == [2, 3]


@pytest.mark.on_demand
def test_both_trainers_of_lumos_agree_before_an_epoch_is_timed(tmp_path: Path) -> None:
    found = run("lumos", tmp_path / "lumos.json")
    assert found["trainers_differ_by"] < 1e-9
    assert [row["devices"] for row in found["rows"]] == [60, 120]


def test_every_balancer_keeps_every_edge_and_none_is_below_the_optimum_before_it_is_counted(
    tmp_path: Path,
) -> None:
    found = run("lumos_balance", tmp_path / "balance.json")["graphs"]["social"]
    largest = {row["balancer"]: row["largest"] for row in found["rows"]}
    assert largest["oracle"] == found["optimum"]["largest"]
    assert largest["oracle"] <= largest["local"] < largest["greedy"] < largest["none"]
    assert largest["none"] == found["largest_degree"]


@pytest.mark.on_demand
def test_stacked_forecasters_and_the_graph_network_are_compared_before_they_are_timed(tmp_path):
    result = run("cnfgnn", tmp_path / "cnfgnn.json")
    assert len(result["differences"]) == 3
    assert max(result["differences"].values()) <= 1e-9
    assert "loop over clients" in result["client_step"]["cases"]
    assert [row["clients"] for row in result["memory"]] == [6, 12]
    counted = result["server_step"]["cases"]["float32"]
    # The equations make more products than are carried out, in the same time.
    assert counted["gflops_of_the_equations"] > counted["gflops"]


@pytest.mark.on_demand
def test_fedgats_vectors_are_its_direct_evaluation_before_either_is_timed(tmp_path: Path) -> None:
    found = run("fedgat", tmp_path / "fedgat.json")
    assert found["float64_logits_differ_by"] <= 1e-8
    (row,) = found["rows"]
    assert row["float32_logits_differ_by"] <= 1e-5
    assert set(row["round_s"]) == {
        "central, 1 step",
        "direct, gradients, 1 step",
        *(f"{how}, {steps}" for how in ("direct", "vectors") for steps in ("1 step", "3 steps")),
    }
    for sizes in row["foretold_gib"].values():
        assert 0 < sizes["once"] < sizes["sent"] <= sizes["memory"]


def test_three_clients_of_fedgraph_predict_what_one_does_before_their_rounds_are_timed(
    tmp_path: Path,
) -> None:
    found = run("fedgraph", tmp_path / "fedgraph.json")
    assert found["float64_logits_differ_by"] <= 1e-10
    disjoint, copies = found["rows"]
    assert disjoint["nodes"] < copies["nodes"]
    for row in (disjoint, copies):
        assert set(row["ms"]) == set(row["round / central epoch"])
        # A sample takes a client less than everything does.
        assert row["modelled_ms"]["constant"] < row["modelled_ms"]["full"]


@pytest.mark.on_demand
def test_the_attacks_on_unprotected_messages_find_everything_and_noise_stops_them(tmp_path: Path) -> None:
    cases = run("audits", tmp_path / "audits.json", "messages")["cases"]
    for name in ("fedgat_vector", "fedgat_matrix", "fedgat_drop_single"):
        assert cases[name]["fedgat_features"]["value"] == 1
    assert cases["sapgnn_identity"]["split_features"]["value"] == 1
    assert cases["sapgnn_server"]["split_labels"]["value"] == 1
    noised = [case["fedgat_ldp_features"] for case in cases.values() if case["method"] == "fedgat_ldp"]
    assert len(noised) == 10
    assert all(found["details"]["recovered"] == 0 for found in noised)


@pytest.mark.on_demand
@pytest.mark.parametrize("method", ["cnfgnn", "fedgraph"])
def test_the_audits_of_papers_have_a_figure_and_the_one_without_information(
    method: str, tmp_path: Path
) -> None:
    result = run("audits", tmp_path / "audits.json", method)
    assert result["cases"]
    for case in result["cases"].values():
        assert case["method"] == method
        assert 0 <= case["no_signal"] <= 1
        assert 0 <= case["value"] <= 1


def test_the_record_of_fedgraphs_settings_has_both_degrees_of_the_first_layer(tmp_path: Path) -> None:
    cases = run("fedgraph_settings", tmp_path / "settings.json")["cases"]
    assert {case["settings"]["first_degrees"] for case in cases.values()} == {"all", "internal"}
    assert all(0 <= case["accuracy"]["mean"] <= 100 for case in cases.values())


def test_the_record_of_the_balanced_policy_compares_every_duration_with_full_batches(tmp_path: Path) -> None:
    cases = run("fedgraph_balance", tmp_path / "balance.json")["data"]["cora"]["cases"]
    assert sum(name.startswith("balanced") for name in cases) == 4
    assert cases["full"]["relative"] == 1
    assert all(case["seconds"] > 0 for case in cases.values())


@pytest.mark.on_demand
def test_slower_machines_measure_more_seconds_in_the_record_of_unequal_machines(tmp_path: Path) -> None:
    record = run("fedgraph_machines", tmp_path / "machines.json")
    factors = [machine["factor"] for machine in record["machines"]]
    policies = record["data"]["social"]["policies"]
    (balance,) = policies["balanced"]["balance"]
    typical = [sorted(of_client)[len(of_client) // 2] for of_client in zip(*balance["seconds"], strict=True)]
    slowest, fastest = (factors.index(bound(factors)) for bound in (max, min))
    assert typical[slowest] > 1.2 * typical[fastest], "three times as slow, and both wait for the processor"
    assert all(policy["round"]["mean"] > 0 for policy in policies.values())
