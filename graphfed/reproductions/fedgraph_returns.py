"""How sampling policies learned: the returns of their episodes (Fig. 6 of FedGraph)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphfed.drawing.canvas import Charts
from graphfed.drawing.charts import XY, Axis, Series
from graphfed.reproductions.base import Cells, Found, Measured, Place
from graphfed.reproductions.policies import POLICIES
from graphfed.runs import folder as files
from graphfed.studies.folder_schema import PolicyResult

__all__ = ["draw_returns", "returns", "returns_cells", "returns_of", "settled_from"]

#: Episodes of a mean of returns: the first, the last, and the moving one.
WINDOW = 20


def returns(item: Measured, place: Place) -> list[dict[str, object]]:
    """Return for each row how its policy learned.

    Args:
        item: The item.
        place: The folder and the data.

    Returns:
        For each row label, policy, folder and what `returns_of` returns.
    """
    rows = []
    for row in item.rows:
        assert row.policy is not None
        folder = Path(POLICIES) / row.policy.name
        about = {"label": row.label, "policy": row.policy.name, "folder": str(folder)}
        rows.append({**about, **returns_of(place.folder / folder)})
    return rows


def returns_of(folder: Path) -> dict[str, object]:
    """Return how the policy in a folder learned.

    Args:
        folder: The folder of the policy.

    Returns:
        kind, seed; returns: of each episode; moving_mean: at each episode the mean over the last WINDOW, or
        fewer at the beginning; first, last: the mean over the first WINDOW, and over the last; settled: the
        episode from which the moving mean stays within 5 % of its last value, None for a bandit, whose
        episodes have different arms; best: the best arm of a bandit, share and chance, else None; kept: of
        DDPG the episode after which the actor is the policy, else None; final: the return without noise;
        seconds: of all episodes.

    Raises:
        InputError: A file is damaged.
    """
    content = files.read_json(folder / "result.json", PolicyResult)
    values = [float(value) for value in content["returns"]]
    moving = [float(np.mean(values[max(0, n - WINDOW) : n])) for n in range(1, len(values) + 1)]
    is_bandit = content["kind"] == "bandit"
    return {
        "kind": content["kind"],
        "seed": content["seed"],
        "returns": values,
        "moving_mean": moving,
        "first": float(np.mean(values[:WINDOW])),
        "last": moving[-1],
        "settled": None if is_bandit else 1 + settled_from(moving),
        "best": content["details"]["best"] if is_bandit else None,
        "kept": None if is_bandit else content["details"]["kept_episode"],
        "final": content["final"]["return"],
        "seconds": sum(content["seconds"][part] for part in ("rounds", "evaluation", "learning")),
    }


def settled_from(values: Sequence[float], within: float = 0.05) -> int:
    """Return the place from which all values stay close to the last one.

    Args:
        values: At least one value.
        within: The largest difference, as a fraction of the last value.

    Returns:
        The index of the first of these values.
    """
    far = np.abs(np.array(values) - values[-1]) > within * abs(values[-1])
    return int(far.nonzero()[0][-1]) + 1 if far.any() else 0


def returns_cells(found: Found) -> Cells:
    """Return the table: how returns began and ended, and what is kept of the learning.

    Args:
        found: The part of reproduce.json.

    Returns:
        The names of the columns, and the lines.
    """
    columns = ["row", "policy", "episodes", "return: first 20", "last 20", "without noise", "settled from"]
    columns += ["kept", "hours"]
    lines = []
    for row in found["rows"]:
        ends = [f"{row[key]:.2f}" for key in ("first", "last", "final")]
        best = row["best"]
        if best is None:
            kept = f"the actor after episode {row['kept']}"
        else:
            kept = f"{best['share']:g} of the nodes, chance {best['chance']:g}"
        settled = "-" if row["settled"] is None else str(row["settled"])
        hours = f"{row['seconds'] / 3600:.2f}"
        lines.append([row["label"], row["kind"], str(len(row["returns"])), *ends, settled, kept, hours])
    return columns, lines


def draw_returns(found: Found) -> Charts:
    """Draw the return of every episode, pale, and its moving mean, with a dot where an actor was kept.

    Args:
        found: The part of reproduce.json.

    Returns:
        The charts.
    """
    series = []
    for n, row in enumerate(found["rows"]):
        episodes, moving = range(1, len(row["returns"]) + 1), row["moving_mean"]
        series.append(Series("", episodes, row["returns"], place=n, marker="", alpha=0.3))
        series.append(Series(row["label"], episodes, moving, place=n, marker=""))
        if row["kept"] is not None:
            label = f"{row['label']}: the actor that is kept"
            kept = [row["kept"]], [moving[row["kept"] - 1]]
            series.append(Series(label, *kept, place=n, dash="", marker="o", size=6.0))
    x, y = Axis("episode", whole=True), Axis("return, and its moving mean")
    only = found["rows"][0]["label"] if len(found["rows"]) == 1 else ""  # a legend of one line is none
    return [[XY(series, x, y, only, height=4.2)]]
