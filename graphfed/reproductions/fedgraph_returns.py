"""How the returns of FedGraph's policies grew while they were learned (Fig. 6)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphfed.drawing.canvas import Charts
from graphfed.drawing.charts import XY, Axis, Series
from graphfed.methods.fedgraph.policy.learning import PolicyResult
from graphfed.reproductions.base import Found, Measured, Place, Quick, Row, column_cells, paragraphs
from graphfed.reproductions.policies import POLICIES, Policy
from graphfed.runs import folder as files

#: Episodes of a mean of returns: the first, the last, and the moving one.
WINDOW = 20


def returns(item: Measured, row: Row, place: Place) -> dict[str, object]:
    """Return how the policy of a row learned: policy, folder and what `returns_of` returns."""
    assert row.policy is not None
    folder = Path(POLICIES) / row.policy.name
    return {"policy": row.policy.name, "folder": str(folder), **returns_of(place.folder / folder)}


def returns_of(folder: Path) -> dict[str, object]:
    """Return how the policy in a folder learned; InputError if a file is damaged.

    Returns:
        kind, seed; returns: of each episode; moving_mean: at each episode the mean over the last WINDOW, or
        fewer at the beginning; first, last: the mean over the first WINDOW, and over the last; settled: the
        episode from which the moving mean stays within 5 % of its last value; kept: the episode after which
        the actor is the policy; final: the return without noise; seconds: of all episodes.
    """
    content = files.read_json(folder / "result.json", PolicyResult)
    values = [float(value) for value in content["returns"]]
    moving = [float(np.mean(values[max(0, n - WINDOW) : n])) for n in range(1, len(values) + 1)]
    return {
        "kind": "ddpg",
        "seed": content["seed"],
        "returns": values,
        "moving_mean": moving,
        "first": float(np.mean(values[:WINDOW])),
        "last": moving[-1],
        "settled": 1 + settled_from(moving),
        "kept": content["details"]["kept_episode"],
        "final": content["final"]["return"],
        "seconds": sum(content["seconds"][part] for part in ("rounds", "evaluation", "learning")),
    }


def settled_from(values: Sequence[float], within: float = 0.05) -> int:
    """Return the index from which all values differ by at most a fraction of the last one from it."""
    # Settled after the last value that is far from the end.
    far = np.abs(np.array(values) - values[-1]) > within * abs(values[-1])
    return int(far.nonzero()[0][-1]) + 1 if far.any() else 0


returns_cells = column_cells(
    ("policy", "kind", ""),
    ("episodes", lambda row: len(row["returns"]), ""),
    ("return: first 20", "first", ".2f"),
    ("last 20", "last", ".2f"),
    ("without noise", "final", ".2f"),
    ("settled from", "settled", ""),
    ("kept", lambda row: f"the actor after episode {row['kept']}", ""),
    ("hours", lambda row: row["seconds"] / 3600, ".2f"),
)


def draw_returns(found: Found) -> Charts:
    """Draw the return of every episode, pale, and its moving mean, with a dot where an actor was kept."""
    series = []
    for n, row in enumerate(found["rows"]):
        episodes, moving = range(1, len(row["returns"]) + 1), row["moving_mean"]
        series.append(Series("", episodes, row["returns"], place=n, marker="", alpha=0.3))
        series.append(Series(row["label"], episodes, moving, place=n, marker=""))
        label = f"{row['label']}: the actor that is kept"
        kept = [row["kept"]], [moving[row["kept"] - 1]]
        series.append(Series(label, *kept, place=n, dash="", marker="o", size=6.0))
    x, y = Axis("episode", whole=True), Axis("return, and its moving mean")
    only = found["rows"][0]["label"] if len(found["rows"]) == 1 else ""  # a legend of one line is none
    return [[XY(series, x, y, only, height=4.2)]]


def fig6(policy: Policy, quick: Quick) -> Measured:
    """Return how the returns grew while a policy was learned."""
    return Measured(
        name="fig6",
        kind="returns",
        measure=returns,
        cells=returns_cells,
        draw=draw_returns,
        quick=quick,
        title="Return by episode while a policy is learned, 20 clients",
        source=(
            "Fig. 6; its values cannot be read off. The text has the returns settled in fewer than 100 of "
            "300 episodes"
        ),
        notes=paragraphs("""
            Episodes of DDPG - 300 on Cora, as in the paper, and 40 on CiteSeer and DBLP. The first acts at
            random.

            A return is discounted (gamma 0.99, ours) over the 300 rounds of an episode. The target Lambda is
            the paper's, Cora 0.9016 and CiteSeer 0.879; of DBLP, which takes PubMed's place, what central
            training reaches on the validation nodes.

            The reward uses the accuracy on the validation nodes, where the paper takes the test nodes, and
            modelled seconds as a fraction of those of a round with full batches, where the paper takes the
            seconds of its testbed.
        """),
        rows=(Row("DDPG", policy=policy),),
    )
