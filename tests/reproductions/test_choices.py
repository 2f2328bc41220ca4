"""What a table states as chosen on validation nodes is what its record of the choice says."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from graphfed.reproductions import fedgat, sapgnn
from graphfed.reproductions.reproduce import find_paper

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
#: What the names of the items end with that are choices.
SELECTION = "selection"
CHOSEN = {
    "sapgnn": sapgnn.CHOSEN,
    "fedgat": {
        (panel, network): fedgat.CHOSEN[data, network]
        for panel, data in fedgat.PANELS.items()
        for network in fedgat.CHOICES
    }
    | {("physics", network): chosen for network, chosen in fedgat.PHYSICS_CHOSEN.items()},
}


def best(paper: str) -> dict[tuple[str, str], dict[str, object]]:
    """Return the settings with the best mean on the validation nodes; the first of equal ones."""
    record = json.loads((RESULTS / f"reproduce_{paper}.json").read_text())
    means: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    rows = {}
    for item in record["items"]:
        if item["item"].endswith(SELECTION):
            rows |= {row.label: row for row in find_paper(paper).by_name[item["item"]].rows}
            for row in item["rows"]:
                panel, _, network = row["panel"].partition(" ")
                means[panel, network].append((row["ours"]["val.accuracy"]["mean"], row["label"]))
    labels = {key: max(found, key=lambda each: round(each[0], 9))[1] for key, found in means.items()}
    return {key: dict(rows[label].settings) for key, label in labels.items()}


@pytest.mark.parametrize("paper", CHOSEN)
def test_the_chosen_settings_are_the_best_of_the_record(paper: str) -> None:
    found = best(paper)
    assert {*found} == {*CHOSEN[paper]}
    for key, chosen in CHOSEN[paper].items():
        assert chosen.items() <= found[key].items(), key


@pytest.mark.parametrize("paper", CHOSEN)
def test_the_seeds_of_the_choice_are_in_no_result(paper: str) -> None:
    record = json.loads((RESULTS / f"reproduce_{paper}.json").read_text())
    seeds = defaultdict(set)
    for item in record["items"]:
        for row in item["rows"]:
            seeds[item["item"].endswith(SELECTION)] |= {*row.get("seeds", ())}
    assert seeds[True]
    assert not seeds[True] & seeds[False]
