"""Claims about train/val/test splits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.graphs.splits import drop_unused_classes, make_split, missing_classes
from graphfed.errors import InputError


def graph_of(y, split: Split | None = None) -> Graph:
    return make_graph("g", None, np.asarray(y), [], split=split)


Y = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, -1], [60, 40, 30, 20]))


def test_per_class_trains_on_the_same_number_of_each_class():
    split = make_split(graph_of(Y), "per_class:20,30,40", seed=0)
    assert np.bincount(Y[split.train]).tolist() == [20, 20, 20]
    assert (split.val.sum(), split.test.sum()) == (30, 40)
    assert split.name == "per_class:20,30,40"


def test_per_class_alone_means_20_500_1000():
    y = np.arange(2000) % 5
    assert (
        make_split(graph_of(y), "per_class", 3).hash
        == make_split(graph_of(y), "per_class:20,500,1000", 3).hash
    )


@settings(max_examples=50)
@given(
    y=st.lists(st.integers(-1, 3), min_size=20, max_size=80),
    seed=st.integers(0, 2**40),
    spec=st.sampled_from(
        ["random:0.5,0.25,0.25", "random:0.6,0.2,0.1", "random_plain:0.5,0.2,0.2", "per_class:1,2,3"]
    ),
)
def test_every_split_is_disjoint_and_leaves_unknown_classes_out(y, seed, spec):
    graph = graph_of([*y, *range(4), *range(4), *range(4)])
    split = make_split(graph, spec, seed)
    parts = split.train.astype(int) + split.val + split.test
    assert parts.max() == 1
    assert not parts[graph.y == -1].any()


@pytest.mark.parametrize("spec", ["per_class:5,10,10", "random:0.5,0.25,0.25"])
def test_the_same_seed_gives_the_same_split_and_another_seed_another(spec):
    graph = graph_of(Y)
    assert make_split(graph, spec, 1).hash == make_split(graph, spec, 1).hash
    assert make_split(graph, spec, 1).hash != make_split(graph, spec, 2).hash


def test_random_fractions_are_of_the_nodes_of_known_class():
    split = make_split(graph_of(Y), "random:0.5,0.25,0.25", 0)
    assert (split.train.sum(), split.val.sum(), split.test.sum()) == (65, 33, 32)  # of 130, rounded to even
    everything = make_split(graph_of(Y), "random:0.7,0.2,0.1", 0)
    assert (everything.train | everything.val | everything.test).sum() == 130


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    seed=st.integers(0, 2**40),
    fractions=st.sampled_from([(0.5, 0.25, 0.25), (0.6, 0.2, 0.2), (0.34, 0.33, 0.2)]),
)
def test_every_part_of_a_random_split_has_its_share_of_each_class_within_two_nodes(sizes, seed, fractions):
    y = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.arange(10) % len(sizes)])
    split = make_split(graph_of(y), "random:" + ",".join(map(str, fractions)), seed)
    for part, fraction in zip((split.train, split.val, split.test), fractions, strict=True):
        share = np.bincount(y[part], minlength=len(sizes)) - fraction * np.bincount(y)
        assert np.abs(share).max() <= 2


def test_a_class_of_one_percent_is_in_every_part():
    """Of 20 of 2000 nodes 10, 5 and 5, give or take one, for every seed."""
    y = np.arange(2000) < 20
    for seed in range(20):
        split = make_split(graph_of(y.astype(int)), "random:0.5,0.25,0.25", seed)
        found = [int(y[part].sum()) for part in (split.train, split.val, split.test)]
        assert np.abs(np.array(found) - (10, 5, 5)).max() <= 1


def test_a_plain_random_split_takes_no_notice_of_classes():
    """The draw that papers were reproduced with: the same nodes for any labels."""
    one, other = (make_split(graph_of(y), "random_plain:0.5,0.25,0.25", 3) for y in (Y, np.abs(Y) * (Y >= 0)))
    assert one.name == "random_plain:0.5,0.25,0.25"
    labelled = graph_of(np.where(Y >= 0, 0, -1))
    assert one.hash == make_split(labelled, "random_plain:0.5,0.25,0.25", 3).hash
    assert one.hash != other.hash, "other nodes are labelled"


def test_public_is_the_data_sets_own_and_default_prefers_it():
    public = Split("public", *np.eye(3, len(Y), dtype=bool))
    assert make_split(graph_of(Y, public), "public", 5) is public
    assert make_split(graph_of(Y, public), "default", 5) is public
    y = np.arange(2000) % 5
    assert make_split(graph_of(y), "default", 3).name == "per_class:20,500,1000"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("public", "has no public split; use 'per_class'"),
        ("per_clas", "unknown split 'per_clas'; did you mean 'per_class'"),
        ("public:1,2", "'public' takes no numbers"),
        ("per_class:", "no numbers after the colon"),
        ("per_class:20", "three counts"),
        ("per_class:0,5,5", "at least 1 training node per class"),
        ("per_class:31,5,5", "class 2 of 'g' has 30 labelled nodes, fewer than the 31.*N at most 30"),
        ("per_class:20,50,50", "70 nodes left .* fewer than the 50 [+] 50 .*--split"),
        ("random:0.5,0.5", "three fractions"),
        ("random:0.6,0.3,0.2", "sum at most 1"),
        ("random:0,0.5,0.5", "that of training more than 0"),
        ("random:nan,0.1,0.1", "sum at most 1"),
        ("random:0.5,0.001,0.4", "gives no node for val"),
    ],
)
def test_impossible_splits_are_refused_with_the_fix(spec, message):
    with pytest.raises(InputError, match=message):
        make_split(graph_of(Y), spec, 0)


@pytest.mark.parametrize("spec", ["default", "random:0.5,0.25,0.25", "per_class:1,1,1"])
def test_no_labels_are_said_instead_of_a_fraction(spec):
    with pytest.raises(InputError, match=r"has no labelled node.*task link_prediction"):
        make_split(graph_of(np.full(9, -1)), spec, 0)


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, True])
def test_a_seed_that_is_no_natural_number_is_refused(seed):
    with pytest.raises(InputError, match=r"seed .* at least 0"):
        make_split(graph_of(Y), "random:0.5,0.2,0.2", seed)


def test_the_suggested_fix_for_too_few_nodes_works():
    with pytest.raises(InputError, match="'per_class:20,23,35'"):
        make_split(graph_of(Y), "per_class:20,50,50", 0)
    assert make_split(graph_of(Y), "per_class:20,23,35", 0).test.sum() == 35


@pytest.mark.parametrize(("train", "val", "test"), [(29, 5, 5), (30, 50, 50), (33, 0, 5)])
def test_no_split_with_an_empty_part_is_ever_suggested(train, val, test):
    """Classes of 30 nodes: of so few left, no third or half is a part."""
    y = np.array([0] * 30 + [1] * 30 + [-1] * 4)
    with pytest.raises(InputError) as refusal:
        make_split(graph_of(y), f"per_class:{train},{val},{test}", 0)
    assert "per_class" not in str(refusal.value)
    assert "random:0.5,0.25,0.25" in str(refusal.value)


def found(split: Split, y: np.ndarray) -> np.ndarray:
    """Count the nodes of each class in train, val and test, [3, C]."""
    return np.stack(
        [np.bincount(y[part], minlength=y.max() + 1) for part in (split.train, split.val, split.test)]
    )


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ([4950, 50], "random:0.5,0.25,0.25"),  # a class of 1 %: per_class leaves about 3 of 50 for validation
        ([4975, 25], "random:0.5,0.25,0.25"),
        ([4998, 2], "random:0.5,0.25,0.25"),
        ([30, 30, 30], "random:0.5,0.25,0.25"),  # too few nodes for 500 and 1000
        ([5000], "per_class:20,500,1000"),
        ([178, 182, 177, 183, 181, 182, 181, 179, 174, 180], "per_class:20,500,1000"),  # digits
        ([800, 700, 600, 400], "per_class:20,500,1000"),
    ],
)
def test_the_default_split_has_every_class_with_three_nodes_in_every_part(sizes, name):
    y = np.repeat(np.arange(len(sizes)), sizes)
    for seed in range(5):
        split = make_split(graph_of(y), "default", seed)
        assert split.name == name
        enough = np.array(sizes) >= 3
        assert found(split, y)[:, enough].min() >= 1
        if sizes == [4950, 50]:
            assert np.abs(found(split, y)[:, 1] - (25, 12.5, 12.5)).max() <= 1


@settings(max_examples=100)
@given(sizes=st.lists(st.integers(3, 9), min_size=1, max_size=4), seed=st.integers(0, 2**40))
def test_a_stratified_split_has_every_class_in_every_part(sizes, seed):
    y = np.concatenate([np.zeros(60, dtype=int), np.repeat(np.arange(1, len(sizes) + 1), sizes)])
    assert found(make_split(graph_of(y), "random:0.8,0.1,0.1", seed), y).min() >= 1


def test_classes_that_a_part_lacks_are_named():
    y = np.array([0, 0, 0, 1, 1, 2])
    split = Split("own", *(np.isin(np.arange(6), part) for part in ([0, 3], [1, 4], [2, 5])))
    graph = make_graph("g", None, y, [], class_names=("legit", "fraud", "new"), split=split)
    assert missing_classes(graph, split) == (
        "class 'new' has no training node, so the model cannot learn it",
        "class 'new' has no validation node, so the validation metrics do not count it",
        "class 'fraud' has no test node, so the test metrics do not count it",
    )


def test_a_class_without_a_node_in_any_part_is_no_class():
    """As in Elliptic, whose third class means that the label is unknown."""
    y = np.array([0, 1, 0, 1, 0, 1, 2, 2, -1])
    split = Split("own", *(np.isin(np.arange(9), part) for part in ([0, 1], [2, 3], [4, 5])))
    kept = drop_unused_classes(graph_of(y, split), split)
    assert (kept.num_classes, kept.y.tolist()) == (2, [0, 1, 0, 1, 0, 1, -1, -1, -1])
    assert kept.dropped == ("class 2, without a node in any part of the split (2 labels)",)
    middle = drop_unused_classes(graph_of(np.array([0, 2, 0, 2, 0, 2, 1, 1, -1]), split), split)
    assert (middle.class_names, middle.y.tolist()) == (("0", "2"), kept.y.tolist())
    whole = graph_of(np.where(y == 2, 0, y), split)
    assert drop_unused_classes(whole, split) is whole
