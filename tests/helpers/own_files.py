"""Users' own tables for three clients, as CSV files: string ids in no order, clients of unequal sizes, edges
between clients that stand in the files of both, and customers whom clients share.

Every client has a description of its own tables, and one party that has all files a description of them
all."""

import csv
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SITES = ("north", "south", "west")
SIZES = (22, 34, 50)
FEATURES = 6
DESCRIPTION = """\
id: customer
label: fraud
classes: ["no", "yes"]
split: part
source: payer
target: payee
"""
OF_TWO_SITES = "source_client: payer_bank\ntarget_client: payee_bank\n"


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def _customer(draw: random.Random) -> list[Any]:
    """Features, label and part of the split."""
    label = draw.random() < 0.5
    features = [round(draw.gauss(float(label and j < 3), 1), 4) for j in range(FEATURES)]
    return [*features, "yes" if label else "no", draw.choice(["train", "train", "val", "test"])]


NODE_COLUMNS = [*(f"f{j}" for j in range(FEATURES)), "fraud", "part"]


def write_clients_with_edges_between_them(folder: Path) -> None:
    """all.yaml, of one table with a column of clients, and north.yaml, south.yaml and west.yaml of the
    clients' own. Ids are unique within a client only: most stand for another customer at each client."""
    draw = random.Random(0)
    client = [name for name, size in zip(SITES, SIZES, strict=True) for _ in range(size)]
    # 7 has no common divisor with the sizes: every customer has an id of its own, in no order.
    ids = [f"c{i * 7 % size}" for size in SIZES for i in range(size)]
    nodes = [[name, where, *_customer(draw)] for name, where in zip(ids, client, strict=True)]
    edges: set[tuple[int, int]] = set()
    while len(edges) < 250:
        u, v = sorted(draw.sample(range(len(nodes)), 2))
        if client[u] == client[v] or draw.random() < 0.4:
            edges.add((u, v))
    ends = [(u, v) if draw.random() < 0.5 else (v, u) for u, v in sorted(edges)]
    draw.shuffle(ends)
    order = draw.sample(range(len(nodes)), len(nodes))
    for name, here in (("all", SITES), *((one, (one,)) for one in SITES)):
        held = [nodes[i] for i in order if client[i] in here]
        listed = [(*nodes[u][:2], *nodes[v][:2]) for u, v in ends if client[u] in here or client[v] in here]
        _write(folder / f"{name}_nodes.csv", ["customer", "bank", *NODE_COLUMNS], held)
        _write(folder / f"{name}_edges.csv", ["payer", "payer_bank", "payee", "payee_bank"], listed)
        files = f"nodes: {name}_nodes.csv\nedges: {name}_edges.csv\nclient: bank\n"
        (folder / f"{name}.yaml").write_text(files + DESCRIPTION + OF_TWO_SITES)


def write_clients_that_share_customers(folder: Path) -> None:
    """all.yaml, which names every client's files, and north.yaml, south.yaml and west.yaml of the clients'
    own. A third of the customers are at two clients, some with a label at one of them only."""
    draw = random.Random(1)
    people = {f"p{i * 37 % 101:03d}": _customer(draw) for i in range(90)}
    held: dict[str, list[str]] = {name: [] for name in SITES}
    for name in people:
        for where in draw.sample(SITES, draw.choice([1, 1, 2])):
            held[where].append(name)
    files = ""
    for where, names in held.items():
        rows = []
        for name in draw.sample(names, len(names)):
            *features, label, part = people[name]
            known = draw.random() < 0.8
            rows.append([name, *features, label if known else "", part if known else ""])
        pairs = [draw.sample(names, 2) for _ in range(2 * len(names))]
        _write(folder / f"{where}_nodes.csv", ["customer", *NODE_COLUMNS], rows)
        _write(folder / f"{where}_edges.csv", ["payer", "payee"], pairs)
        (folder / f"{where}.yaml").write_text(
            f"nodes: {where}_nodes.csv\nedges: {where}_edges.csv\n{DESCRIPTION}"
        )
        files += f"  {where}: {{nodes: {where}_nodes.csv, edges: {where}_edges.csv}}\n"
    (folder / "all.yaml").write_text(f"clients:\n{files}{DESCRIPTION}")
