"""Splits of a graph's nodes into train, val and test: public, per class, or random."""

from dataclasses import replace

import numpy as np

from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.seeding import generator, shuffle_by_group
from graphfed.errors import InputError, did_you_mean, shown

__all__ = ["drop_unused_classes", "fractions_in", "hashed_parts", "make_split", "missing_classes"]

KINDS = ("default", "per_class", "public", "random", "random_plain")
#: The numbers of the default "per_class", and those of "random".
PER_CLASS, FRACTIONS = "20,500,1000", "0.5,0.25,0.25"
#: The default split of graphs of PyG and networkx, which have no convention but masks.
UNSPLIT = "random:0.6,0.2,0.2"
#: The default split is "per_class" only if the validation part is expected to have this many nodes of every
#: class. With fewer, its accuracy on the class would be a matter of chance.
ENOUGH_IN_VALIDATION = 10
PARTS = {"train": "training", "val": "validation", "test": "test"}


def make_split(graph: Graph, spec: str, seed: int) -> Split:
    """Make a split of a graph's nodes. Nodes of unknown class (-1) are in no part.

    The kinds of split::

        "public"                  the data set's own split; the seed is not used
        "per_class"               the same as "per_class:20,500,1000"
        "per_class:T,V,S"         T training nodes of each class, then V for validation and S for test
        "random:A,B,C"            fractions of the nodes of every class, A + B + C <= 1 (stratified); a class
                                  with a node for each part is in every part
        "random_plain:A,B,C"      fractions of all nodes of known class, not stratified by class
        "default"                 "public" if the data set has its own split; else the default split that it
                                  names, if any; else "per_class" if every class is frequent enough for it,
                                  else "random:0.5,0.25,0.25"

    Args:
        graph: The graph, with at least one labelled node.
        spec: The kind of split and its numbers.
        seed: The seed of the draw. The same seed gives the same split.

    Returns:
        The split, whose `name` is the spec with all its numbers, or "public".

    Raises:
        InputError: The spec is unknown, the data set has no such split, or there are too few nodes.
    """
    kind, numbers = _parsed(spec)
    if kind in ("default", "public") and graph.split is None and graph.split_problem:
        raise InputError(f"data set {graph.name!r} has no split that can be used: {graph.split_problem}")
    if kind == "default" and graph.split is None and graph.default_split:
        kind, numbers = _parsed(graph.default_split)
    elif kind == "default":
        kind = _default_kind(graph)
    if kind == "public":
        if graph.split is None:
            raise InputError(
                f"data set {graph.name!r} has no public split; use 'per_class' (20 training nodes per class, "
                "500 nodes for validation, 1000 for test) or 'random:0.5,0.25,0.25'"
            )
        return graph.split
    if not (graph.y >= 0).any():
        raise InputError(
            f"{graph.name!r} has no labelled node, and a split divides the labelled nodes; add labels, or "
            "choose the task link_prediction, which splits edges"
        )
    if kind == "per_class":
        return _per_class(graph, _counts(spec, numbers or PER_CLASS), seed)
    return _random(graph, kind, fractions_in(spec, numbers or FRACTIONS), seed)


def _default_kind(graph: Graph) -> str:
    """Choose the kind of the default split.

    The same number of training nodes for each class leaves few or no nodes of a rare class for validation and
    test, so data with a rare class, and small data, get a stratified split.
    """
    if graph.split is not None:
        return "public"
    size = np.bincount(graph.y[graph.y >= 0], minlength=graph.num_classes)
    per_class, num_val, num_test = _counts("default", PER_CLASS)
    left = size - per_class
    if not size.size or left.min() < 0 or left.sum() < num_val + num_test:
        return "random"
    return "per_class" if num_val * left.min() >= ENOUGH_IN_VALIDATION * left.sum() else "random"


def missing_classes(graph: Graph, split: Split) -> tuple[str, ...]:
    """Describe the classes that have nodes in some parts of a split only, in a sentence for each part."""
    counts = {part: np.bincount(graph.y[getattr(split, part)], minlength=graph.num_classes) for part in PARTS}
    occurs = sum(counts.values()) > 0
    sentences = []
    for part, name in PARTS.items():
        absent = np.flatnonzero(occurs & (counts[part] == 0))
        if absent.size:
            verb, them = ("has", "it") if len(absent) == 1 else ("have", "them")
            effect = f"the model cannot learn {them}"
            if part != "train":
                effect = f"the {name} metrics do not count {them}"
            sentences.append(f"{_named(graph, absent)} {verb} no {name} node, so {effect}")
    return tuple(sentences)


def drop_unused_classes(graph: Graph, split: Split) -> Graph:
    """Remove the classes that have no node in any part of a split, and name them in `dropped`.

    Such a class would get an output of the model that nothing trains, and would turn two classes into three,
    whose metrics are other ones. Its nodes are kept without a label, and the other classes are renumbered.
    """
    used = np.zeros(graph.num_classes, dtype=bool)
    used[graph.y[(graph.y >= 0) & (split.train | split.val | split.test)]] = True
    if used.all():
        return graph
    number = np.append(np.where(used, np.cumsum(used) - 1, -1), -1)  # the last entry is for y = -1
    names = graph.class_names
    if not names and not used[: used.sum()].all():  # a class is removed that is not the last
        names = tuple(map(str, range(graph.num_classes)))
    unused = np.flatnonzero(~used)
    nodes = int((~used[graph.y[graph.y >= 0]]).sum())
    phrase = f"{_named(graph, unused)}, without a node in any part of the split ({nodes:,} labels)"
    return replace(
        graph,
        y=number[graph.y],
        num_classes=int(used.sum()),
        class_names=tuple(name for name, keep in zip(names, used, strict=True) if keep) if names else (),
        dropped=(*graph.dropped, phrase),
    )


def _named(graph: Graph, classes: np.ndarray) -> str:
    """Name at most five classes."""
    names = [shown(graph.class_names[c]) if graph.class_names else str(c) for c in classes[:5].tolist()]
    more = f" and {len(classes) - 5:,} more" if len(classes) > 5 else ""
    return f"class{'es' if len(classes) > 1 else ''} {', '.join(names)}{more}"


def hashed_parts(ids: np.ndarray, spec: str, seed: int) -> np.ndarray:
    """Assign each node to a part by a hash of its id, [n] int8: 0 train, 1 val, 2 test, 3 none.

    Clients that hold the same node so assign it to the same part without any communication. `spec` is
    "random:A,B,C" or "random_plain:A,B,C". Neither is stratified by class, because a client does not know the
    other clients' nodes. "default" is "random:0.5,0.25,0.25".
    """
    import torch

    from graphfed.random import fold, uniform

    kind, numbers = _parsed(spec)
    if kind not in ("default", "random", "random_plain"):
        raise InputError(
            f"split {shown(spec)} cannot be drawn if every client sees only its own nodes; add a column "
            "with the part of each node ('split: COLUMN' in the description), or use 'random:0.5,0.25,0.25'"
        )
    fractions = fractions_in(spec, numbers or FRACTIONS)
    # A 64-bit hash of (seed, id), as a number in [0, 1).
    hashed = uniform(fold(seed, "split/random"), torch.from_numpy(ids))[:, 0].numpy()
    return np.searchsorted(np.cumsum(fractions), hashed, side="right").astype(np.int8)


def _parsed(spec: str) -> tuple[str, str]:
    """Separate a spec into the kind of split and its numbers as text; InputError for an unknown spec."""
    kind, colon, numbers = spec.partition(":")
    kind = kind.lower()
    if kind == "edges":
        raise InputError(
            f"split {shown(spec)} splits edges, for link prediction (--task link_prediction); node "
            "classification needs a split of nodes, as in 'random:0.5,0.25,0.25'"
        )
    if kind not in KINDS:
        raise InputError(f"unknown split {shown(spec)}; {did_you_mean(kind[:60], KINDS)}")
    if colon and kind in ("default", "public"):
        raise InputError(
            f"split {shown(spec)}: {kind!r} takes no numbers; omit them, or use 'per_class:20,500,1000' or "
            "'random:0.5,0.25,0.25'"
        )
    if colon and not numbers:
        raise InputError(f"split {shown(spec)} has no numbers after the colon; write them or drop the colon")
    return kind, numbers


def _per_class(graph: Graph, counts: tuple[int, int, int], seed: int) -> Split:
    per_class, num_val, num_test = counts
    rng = generator(seed, "split/per_class")
    order, size, rank = shuffle_by_group(rng, np.flatnonzero(graph.y >= 0), graph.y, graph.num_classes)
    if (size < per_class).any():
        c = int(size.argmin())
        smaller = ""
        if min(size[c], num_val, num_test):
            smaller = f"'per_class:N,{num_val},{num_test}' with N at most {size[c]}, or "
        raise InputError(
            f"class {shown(graph.class_names[c]) if graph.class_names else c} of {graph.name!r} has "
            f"{size[c]} labelled {'node' if size[c] == 1 else 'nodes'}, fewer than the {per_class} training "
            f"nodes per class; use {smaller}'random:0.5,0.25,0.25' as the split (--split)"
        )
    # `order` is sorted by class, so the rest is shuffled once more before it is divided.
    train, rest = order[rank < per_class], rng.permutation(order[rank >= per_class])
    if len(rest) < num_val + num_test:
        fewer = len(rest) // 3, len(rest) // 2
        possible = f"'per_class:{per_class},{fewer[0]},{fewer[1]}' or " if min(fewer) else ""
        raise InputError(
            f"{graph.name!r} has {len(rest)} nodes left after {per_class} training nodes per class, "
            f"fewer than the {num_val} + {num_test} for validation and test; "
            f"use {possible}'random:0.5,0.25,0.25' as the split (--split)"
        )
    name = f"per_class:{per_class},{num_val},{num_test}"
    return _split(graph, name, train, rest[:num_val], rest[num_val : num_val + num_test])


def _random(graph: Graph, kind: str, fractions: tuple[float, float, float], seed: int) -> Split:
    known = np.flatnonzero(graph.y >= 0)
    if kind == "random_plain":
        order = generator(seed, "split/random").permutation(known)
    else:
        # Another purpose than that of the plain draw, so the two splits of a seed are independent.
        order = _stratified_order(graph.y, known, generator(seed, "split/stratified"))
    # Rounding the ends and not the sizes keeps every node in at most one part.
    ends = np.rint(np.cumsum(fractions) * len(known)).astype(int)
    parts = np.split(order, ends)[:3]
    for part, nodes, fraction in zip(("train", "val", "test"), parts, fractions, strict=True):
        if fraction > 0 and not len(nodes):
            raise InputError(
                f"a fraction of {fraction:g} of the {len(known)} nodes of known class of {graph.name!r} "
                f"gives no node for {part}; use a larger fraction"
            )
    if kind == "random":
        parts = _with_every_class(graph.y, parts, fractions)
    return _split(graph, f"{kind}:" + ",".join(f"{f:g}" for f in fractions), *parts)


def _with_every_class(
    y: np.ndarray, drawn: list[np.ndarray], fractions: tuple[float, float, float]
) -> list[np.ndarray]:
    """Give every part a node of every class that has enough nodes.

    Rounding may leave a rare class out of a part. Then one node moves there from the part with most of them.
    """
    parts, asked = list(drawn), [part for part, fraction in enumerate(fractions) if fraction > 0]
    counts = np.stack([np.bincount(y[nodes], minlength=int(y.max()) + 1) for nodes in parts])
    enough = counts.sum(0) >= len(asked)
    for part in asked:
        for c in np.flatnonzero(enough & (counts[part] == 0)):
            giver = int(counts[:, c].argmax())
            node = parts[giver][y[parts[giver]] == c][0]
            parts[giver], parts[part] = parts[giver][parts[giver] != node], np.append(parts[part], node)
            counts[giver, c], counts[part, c] = counts[giver, c] - 1, 1
    return parts


def _stratified_order(y: np.ndarray, known: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Order the nodes `known` at random, every prefix with the classes in proportion, up to about one node.

    The k-th of the n nodes of a class, in random order, gets the key (k + u) / n, with one random u in [0, 1)
    per class. The nodes are sorted by their keys.
    """
    drawn, size, rank = shuffle_by_group(rng, known, y)
    key = (rank + rng.random(len(size))[y[drawn]]) / size[y[drawn]]
    order: np.ndarray = drawn[np.argsort(key, kind="stable")]
    return order


def _split(graph: Graph, name: str, train: np.ndarray, val: np.ndarray, test: np.ndarray) -> Split:
    masks = np.zeros((3, graph.num_nodes), dtype=bool)
    for mask, nodes in zip(masks, (train, val, test), strict=True):
        mask[nodes] = True
    return Split(name, masks[0], masks[1], masks[2])


def _counts(spec: str, numbers: str) -> tuple[int, int, int]:
    try:
        per_class, val, test = (int(part) for part in numbers.split(","))
    except ValueError:
        raise InputError(
            f"split {shown(spec)} cannot be read; write three counts, as in 'per_class:20,500,1000'"
        ) from None
    if per_class < 1 or val < 0 or test < 0:
        raise InputError(
            f"split {shown(spec)}: use at least 1 training node per class, and no negative count"
        )
    return per_class, val, test


def fractions_in(
    spec: str, numbers: str, example: str = "random:0.5,0.25,0.25"
) -> tuple[float, float, float]:
    """Read the fractions for train, val and test from the `numbers` of `spec`, as in "0.5,0.25,0.25".

    The first must be positive, and their sum at most 1.
    """
    try:
        train, val, test = (float(part) for part in numbers.split(","))
    except ValueError:
        raise InputError(
            f"split {shown(spec)} cannot be read; write three fractions, as in {example!r}"
        ) from None
    # The tolerance allows for rounding, as in 0.7 + 0.2 + 0.1. NaN fails every comparison.
    if not (train > 0 and val >= 0 and test >= 0 and train + val + test <= 1 + 1e-9):
        raise InputError(
            f"split {shown(spec)}: the fractions must be at least 0, that of training more than 0, and "
            "their sum at most 1"
        )
    return train, val, test
