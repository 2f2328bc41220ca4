"""Charts show what they are given, in one look: colours by place, one legend, ids unique on a page."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from graphfed.drawing.canvas import SERIES, WIDTH, _figure, picture_file, svg_element
from graphfed.drawing.charts import XY, Axis, Bars, Heatmap, Series
from graphfed.drawing.networks import CLASSES, Edges, Network, Nodes, by_value, kilometres

LINES = XY(
    [Series("a", [1, 2], [3, 4], [0.1, 0.2]), Series("b", (), [2.5], place=1, dash="--")],
    Axis("round", whole=True), Axis("accuracy"),
)  # fmt: skip


def test_a_series_without_places_is_a_level_over_the_whole_width() -> None:
    axes = Figure().subplots()
    LINES.draw(axes)
    line, level = axes.get_lines()
    assert np.asarray(line.get_xydata()).tolist() == [[1, 3], [2, 4]]
    assert [line.get_color(), level.get_color()] == list(SERIES[:2])
    assert np.asarray(level.get_ydata()).tolist() == [2.5, 2.5]
    assert np.asarray(level.get_xdata()).tolist() == [0, 1], "of the width of the axes"


def test_all_charts_of_a_picture_share_one_legend_with_every_label_once() -> None:
    more = XY([Series("a", [1], [1]), Series("c", [1], [1], place=2)], Axis(), Axis())
    figure = _figure([[LINES, more], [LINES]], WIDTH, "outside upper left")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    assert [ax.get_visible() for ax in figure.axes] == [True, True, True, False]
    assert _figure([[more]], WIDTH, "outside upper left").get_figheight() > more.height


def test_ids_of_an_element_begin_with_its_title_and_no_two_elements_share_one() -> None:
    texts = [svg_element(title, [[LINES]]) for title in ("one & all", "other")]
    first, second = (set(re.findall(r'\bid="([^"]+)"', text)) for text in texts)
    assert first
    assert all(name.startswith("oneall-") for name in first)
    assert not first & second
    for text, ids in zip(texts, (first, second), strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= ids
    assert 'aria-label="one &amp; all"' in texts[0]
    assert svg_element("other", [[LINES]]) == texts[1]


def test_a_picture_is_a_file_of_either_form_with_its_title() -> None:
    assert picture_file("the title", [[LINES]], form="png").startswith(b"\x89PNG")
    drawn = picture_file("the title", [[LINES]])
    assert b"the title" in drawn
    assert picture_file("the title", [[LINES]]) == drawn


@pytest.mark.parametrize("across", [False, True])
def test_bars_are_stacked_in_the_order_of_their_parts_and_marked_where_a_mark_is(across: bool) -> None:
    axes = Figure().subplots()
    marks = {"printed": [None, 6.0]}
    Bars(["x", "y"], {"p": [1, 2], "q": [3, 4]}, Axis("n"), across=across, marks=marks).draw(axes)
    ends = [
        bar.get_x() + bar.get_width() if across else bar.get_y() + bar.get_height() for bar in axes.patches
    ]
    assert ends == [1, 2, 4, 6]
    (mark,) = axes.get_lines()
    assert np.asarray(mark.get_xydata()).tolist() == ([[6, 1]] if across else [[1, 6]])


def test_names_of_bars_are_turned_where_they_would_touch_and_left_out_where_there_are_many() -> None:
    def turn(count: int, name: str) -> list[float]:
        axes = Figure().subplots()
        Bars([name] * count, {"": [1] * count}, Axis()).draw(axes)
        return [text.get_rotation() for text in axes.get_xticklabels()]

    assert turn(4, "short") == [0] * 4
    assert turn(8, "a long name") == [45] * 8
    assert turn(25, "a long name") == [90] * 25
    assert turn(31, "a") == []


def test_an_axis_spans_at_least_the_span_that_is_asked_for() -> None:
    axes = Figure().subplots()
    XY([Series("", [1, 2], [50, 50.5])], Axis(), Axis(span=5)).draw(axes)
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(5)
    assert (low + high) / 2 == pytest.approx(50.25)


def test_the_first_row_of_a_table_of_shares_is_where_its_axis_begins() -> None:
    axes = Figure().subplots()
    Heatmap(np.eye(3), Axis(), Axis(low=2.5, high=-0.5), texts={(0, 0): ("100", "7")}).draw(axes)
    assert axes.get_ylim() == (2.5, -0.5)
    assert [text.get_text() for text in axes.texts] == ["100", "7"]


@given(
    st.lists(st.one_of(st.floats(0, 1e6), st.just(float("nan"))), min_size=1, max_size=30),
    st.integers(0, 2**30),
)
def test_every_node_is_drawn_once_and_the_stronger_the_larger_its_value(
    values: list[float], other: int
) -> None:
    value, triangles = np.array(values), np.array([bool(other >> k & 1) for k in range(len(values))])
    kinds = by_value(value, "error", "none", triangles, "apart")
    assert np.sum([kind.members for kind in kinds], axis=0).tolist() == [1] * len(values)
    strength = np.sum([kind.strength * kind.members for kind in kinds], axis=0)
    assert np.array_equal(strength == 0, np.isnan(value))
    known = np.flatnonzero(~np.isnan(value))
    ordered = known[np.argsort(value[known], kind="stable")]
    assert (np.diff(strength[ordered]) >= 0).all()
    assert len({kind.label for kind in kinds if kind.label.startswith("error")}) <= CLASSES
    for kind in kinds:
        assert not (kind.members & (triangles != (kind.marker == "^"))).any()


def test_hollow_nodes_are_named_in_the_legend_too() -> None:
    members = np.array([True, False])
    nodes = [Nodes(~members, "not seen", 0.0), Nodes(members, "seen")]
    place = kilometres(np.array([[52.0, 4.0], [52.1, 4.1]]), True)
    axes = Figure().subplots()
    Network(place, [Edges(np.array([[0, 1]]), "edge")], nodes).draw(axes)
    assert axes.get_legend_handles_labels()[1] == ["edge", "not seen", "seen"]
