"""Draws nodes and edges on a plane: a graph and its clients, or sensors on a map.

Shapes: N nodes, E edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from graphfed.drawing.canvas import INK, MUTED, PAPER, SERIES, WIDTH, short
from graphfed.drawing.charts import Axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KM_PER_DEGREE = 111.2
#: The number of classes of values on a map.
CLASSES = 5
#: The most edges and nodes that are drawn. Of more, a selection is drawn that is evenly spread over their
#: order.
DRAWN_EDGES, DRAWN_NODES = 3000, 2000


@dataclass(frozen=True)
class Edges:
    """Edges in one colour; `ends` [E, 2] are the nodes of each."""

    ends: np.ndarray
    label: str = ""
    colour: str = MUTED
    alpha: float = 0.5


@dataclass(frozen=True)
class Nodes:
    """Nodes that look alike.

    Attributes:
        members: Whether each node belongs to them, [N] bool.
        strength: The strength of their colour; 0 for hollow markers.
        area: The area of the marker in square points.
    """

    members: np.ndarray
    label: str = ""
    strength: float = 1.0
    marker: str = "o"
    colour: str = SERIES[0]
    area: float = 18.0


@dataclass(frozen=True)
class Network:
    """Nodes over their edges, drawn from bottom to top.

    Attributes:
        position: Positions of the nodes, [N, 2], in kilometres or without a unit.
        names: Names and their positions, [2] each.
        axes: Whether positions have a unit and axes are drawn.
        size: The height in inches; None to fit the positions to the width of a page.
    """

    position: np.ndarray
    edges: Sequence[Edges]
    nodes: Sequence[Nodes]
    names: Sequence[tuple[str, np.ndarray]] = ()
    axes: bool = True
    title: str = ""
    size: float | None = None

    @property
    def height(self) -> float:
        low, high = self._limits
        ratio = (high - low)[1] / (high - low)[0]
        return 0.75 + (WIDTH - 0.7) * float(np.clip(ratio, 0.35, 1.25)) if self.size is None else self.size

    @property
    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Left and bottom, right and top. The nodes may all be at one point or on one line."""
        points = np.concatenate([self.position, *(place[None] for _, place in self.names)])
        low, high = points.min(0), points.max(0)
        # All nodes at one point have no extent.
        extent = max((high - low).max(), 0.1)
        # A margin keeps markers at the edge whole, and a line of nodes gets a frame that is not flat.
        half = np.maximum((high - low) / 2, 0.1 * extent) + 0.07 * extent
        return (low + high) / 2 - half, (low + high) / 2 + half

    def draw(self, ax: "Axes") -> None:
        from matplotlib.collections import LineCollection

        place = self.position
        for group in self.edges:
            ends = place[group.ends[_spread(len(group.ends), DRAWN_EDGES)].astype(int)]
            lines = LineCollection(list(ends), colors=group.colour, linewidths=0.5, alpha=group.alpha)
            ax.add_collection(lines)
            # A collection with thin lines has no clear sign in a legend, so an empty line stands for it.
            ax.plot([], [], color=group.colour, linewidth=1.2, label=group.label or None)
        scale = float(np.clip(np.sqrt(200 / max(1, len(place))), 0.35, 1.6))
        drawn = _spread(len(place), DRAWN_NODES)
        for order, kind in enumerate(self.nodes):
            x, y = place[drawn & kind.members].T
            area, width, marker = kind.area * scale, 0.6 * min(scale, 1.0), kind.marker
            label, hollow = kind.label or None, not kind.strength
            # An opaque marker in the background colour keeps edges from showing through.
            ax.scatter(
                x, y, s=area, marker=marker, linewidths=width, facecolor=PAPER,
                edgecolor=MUTED if hollow else INK, zorder=2 + 0.1 * order, label=label if hollow else None,
            )  # fmt: skip
            if not hollow:
                ax.scatter(
                    x, y, s=area, marker=marker, linewidths=width, color=kind.colour, alpha=kind.strength,
                    zorder=2.05 + 0.1 * order, label=label,
                )  # fmt: skip
        for name, (x, y) in self.names:
            ax.text(x, y, short(name, 18), ha="center", va="center", fontsize=9, zorder=5)
        (left, bottom), (right, top) = self._limits
        Axis("kilometres east of the middle" if self.axes else "", low=left, high=right).apply(ax, "x")
        Axis("kilometres north" if self.axes else "", low=bottom, high=top).apply(ax, "y")
        ax.set_aspect("equal")
        ax.set_title(short(self.title, 60))
        if not self.axes:
            ax.set_axis_off()

    def free_places(self, named: Mapping[str, int]) -> list[tuple[str, np.ndarray]]:
        """Find positions for names next to their nodes, without touching a node or another name.

        A name for which there is no position is left out.
        """
        low, high = self._limits
        point = (high - low)[0] / (72 * (WIDTH - 0.7))
        taken: list[tuple[np.ndarray, np.ndarray]] = []
        found: list[tuple[str, np.ndarray]] = []
        for name, node in named.items():
            half = point * np.array([3.0 * len(name), 7.0])
            for x, y in ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1)):
                middle = self.position[node] + np.array([x, y]) * (half + 5 * point)
                on_node = (np.abs(self.position - middle) < half + 4 * point).all(1)
                on_node[node] = False
                on_name = any((np.abs(centre - middle) < half + size).all() for centre, size in taken)
                if not on_node.any() and not on_name:
                    taken.append((middle, half))
                    found.append((name, middle))
                    break
        return found


def kilometres(position: np.ndarray, geographic: bool) -> np.ndarray:
    """Convert positions [N, 2], or latitudes and longitudes, to kilometres east and north of their centre."""
    middle = (position.min(0) + position.max(0)) / 2
    away: np.ndarray = position - middle
    if geographic:
        # A degree of longitude becomes shorter towards the poles.
        away = KM_PER_DEGREE * np.stack((away[:, 1] * np.cos(np.radians(middle[0])), away[:, 0]), 1)
    return away


def by_value(
    values: np.ndarray, what: str, without: str, other: np.ndarray, other_label: str = ""
) -> list[Nodes]:
    """Group nodes into classes of a value with round limits: a larger value has a larger and stronger marker.

    `values` are [N], nan for a node without one. The legend says `what` they are, and what a node is that has
    none (`without`). Nodes in `other`, [N] bool, have a triangle as marker, with a label in the legend.
    """
    from matplotlib.ticker import MaxNLocator

    known = np.isfinite(values)
    kinds = [Nodes(~known, without, 0.0)] if not known.all() else []
    if known.any():
        low, high = float(values[known].min()), float(values[known].max())
        limits = np.asarray(MaxNLocator(CLASSES - 1).tick_values(low, high), dtype=float)
        # Limits beyond the values would be classes without nodes.
        limits = limits[max(0, np.searchsorted(limits, low, "right") - 1) :]
        limits = limits[: max(2, np.searchsorted(limits, high, "left") + 1)]
        count = len(limits) - 1
        found = np.clip(np.searchsorted(limits, np.where(known, values, low), "right") - 1, 0, count - 1)
        for c in range(count):
            strength = 0.16 + 0.84 * c / max(1, count - 1)
            label = f"{what} {limits[c]:.4g} to {limits[c + 1]:.4g}"
            kinds.append(Nodes(known & (found == c), label, strength, colour=SERIES[1], area=18.0 + 11 * c))
    triangles = [replace(kind, members=kind.members & other, label="", marker="^") for kind in kinds]
    key = Nodes(np.zeros_like(other), other_label, 0.16, "^", SERIES[1])
    discs = [replace(kind, members=kind.members & ~other) for kind in kinds]
    return [*discs, *triangles, key] if other.any() else discs


def _spread(count: int, most: int) -> np.ndarray:
    """Return which of `count` items are drawn [count] bool: all, or `most` spread over their order."""
    drawn = np.zeros(count, dtype=bool)
    drawn[np.linspace(0, count - 1, min(count, most)).round().astype(int)] = True
    return drawn
