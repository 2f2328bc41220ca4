"""The Sphinx directive `flow-picture`, which draws what each participant holds and sends.

    ```{flow-picture}
    :alt: Three banks send gradients to a server and receive weights.

    clients: ["bank A", "bank B", "bank C"]     # two to four names
    clients_hold: "accounts, labels, transfers" # one text for all, or a list
    server: "model weights"                     # omit it if there is no server
    helper: "shares"                            # omit it if there is no helper
    arrows:
    - {from: clients, to: server, text: "gradients, every round"}
    - {from: client, to: client, text: "neighbour sums, once"}
    ```

An end of an arrow is `clients` (or `client`), `server`, `helper` or the name of one client. The drawing is an
SVG 400 units wide, so that its text is readable on a phone. In a page it has the colours of the page; in a
separate file it has those of the reader's system.

`python docs/_ext/flow_picture.py` draws the first picture of `docs/index.md` into
`docs/images/federation.svg`, which the README shows."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from docutils.parsers.rst import Directive, directives
from jinja2 import Environment, FileSystemLoader, StrictUndefined

WIDTH = 400
MARGIN = 8
GAP = 12  # between boxes, and between labels
LINE = 17  # height of a line of text
CHARACTER = 6.8  # width of a character of a label, on average
KEYS = {"clients", "clients_hold", "server", "helper", "arrows"}


@dataclass(frozen=True)
class Box:
    """The box of a participant, with its name in bold and below it what the participant holds."""

    name: str
    holds: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True)
class Label:
    """The text of an arrow, on a background that hides the lines behind it."""

    lines: list[str]
    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True)
class Arrow:
    """A message from one participant to another."""

    source: str
    target: str
    text: str

    def joins(self, one: str, other: str) -> bool:
        """Return whether the arrow connects two groups of participants, in either direction."""
        return {self.group(self.source), self.group(self.target)} == {one, other}

    @staticmethod
    def group(end: str) -> str:
        return end if end in ("server", "helper") else "clients"

    @property
    def kind(self) -> str:
        """The class of the line in the style sheet: `out` from clients, `back` to clients, or `between`
        others."""
        if self.joins("clients", "clients") or self.joins("server", "helper"):
            return "between"
        return "out" if self.group(self.source) == "clients" else "back"

    @property
    def sign(self) -> str:
        if self.joins("clients", "clients"):
            return "↔" if self.source == self.target else ""
        rows = ("server", "clients", "helper")
        return "↓" if rows.index(self.group(self.source)) < rows.index(self.group(self.target)) else "↑"


@dataclass(frozen=True)
class Drawing:
    """The elements that the template draws.

    A line is (x1, y1, x2, y2, kind). The head of an arrow is (x and y of its tip, -1 for up or 1 for down,
    kind)."""

    height: float
    boxes: list[Box]
    labels: list[Label]
    lines: list[tuple[float, float, float, float, str]]
    heads: list[tuple[float, float, int, str]]

    def join(self, arrow: Arrow, ends: dict[str, list[Box]], xs: list[float]) -> None:
        """Draw an arrow between two rows as one vertical line at each x."""
        source, target = ends[arrow.source][0], ends[arrow.target][0]
        down = source.y < target.y
        begin, end = (source.bottom, target.y) if down else (source.y, target.bottom)
        for x in xs:
            self.lines.append((x, begin, x, end, arrow.kind))
            self.heads.append((x, end, 1 if down else -1, arrow.kind))

    def join_clients(self, arrow: Arrow, ends: dict[str, list[Box]], xs: list[float], y: float) -> None:
        """Draw an arrow between clients as a horizontal line at y with a riser at each x."""
        self.lines.append((min(xs), y, max(xs), y, arrow.kind))
        for box, x in zip(_clients_of(arrow, ends), xs, strict=True):
            self.lines.append((x, box.bottom, x, y, arrow.kind))
            if box in ends[arrow.target]:
                self.heads.append((x, box.bottom, -1, arrow.kind))


def flow_picture(description: str, alternative: str = "") -> str:
    """Draw a flow of messages.

    Args:
        description: The YAML text described above.
        alternative: One sentence that describes the picture, for readers who cannot see it.

    Returns:
        The SVG element as text.

    Raises:
        ValueError: A key or an end of an arrow is unknown, or a number of clients is outside 2 to 4.
    """
    given = _check(yaml.safe_load(description))
    arrows = [Arrow(_end(a["from"], given), _end(a["to"], given), a["text"]) for a in given["arrows"]]
    template = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("flow_picture.svg.jinja")
    alternative = alternative or "; ".join(f"{a.source} to {a.target}: {a.text}" for a in arrows)
    return template.render(drawing=_lay_out(given, arrows), width=WIDTH, line=LINE, alternative=alternative)


def _check(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or not {"clients", "arrows"} <= given.keys():
        raise ValueError("a flow-picture needs the keys clients and arrows")
    unknown = given.keys() - KEYS
    if unknown:
        raise ValueError(f"unknown key {', '.join(sorted(unknown))}: use {', '.join(sorted(KEYS))}")
    if not 2 <= len(given["clients"]) <= 4:
        raise ValueError(f"a flow-picture has 2 to 4 clients, not {len(given['clients'])}")
    for arrow in given["arrows"]:
        if not isinstance(arrow, dict) or arrow.keys() != {"from", "to", "text"}:
            raise ValueError(f"an arrow has from, to and text, not {arrow}")
    return given


def _end(name: str, given: dict[str, Any]) -> str:
    """Return the participant at an end of an arrow: `clients`, `server`, `helper` or one client's name."""
    if name in ("client", "clients"):
        return "clients"
    if name in given["clients"] or (name in ("server", "helper") and name in given):
        return name
    known = ["clients", *(key for key in ("server", "helper") if key in given), *given["clients"]]
    raise ValueError(f"no participant {name!r}: use one of {', '.join(known)}")


def _lay_out(given: dict[str, Any], arrows: list[Arrow]) -> Drawing:
    """Place the server at the top, the clients in a row below it and the helper at the bottom."""
    upper = [a for a in arrows if a.joins("server", "clients")]
    lower = [a for a in arrows if a.joins("clients", "clients")]
    lower += [a for a in arrows if a.joins("helper", "clients")]
    aside = [a for a in arrows if a.joins("server", "helper")]  # to the right of the clients
    inner = WIDTH - 2 * MARGIN - 20 * len(aside)
    middles = _client_middles(given["clients"], inner)
    centres = {a: WIDTH if a in aside else _centre(a, middles) for a in arrows}

    y = float(MARGIN)
    boxes: list[Box] = []
    if "server" in given:
        boxes.append(_box("server", given["server"], MARGIN, y, WIDTH - 2 * MARGIN))
        y = boxes[0].bottom + 1.5 * GAP
    labels, y = _labels(upper, centres, y)
    clients = _client_boxes(given, y + (GAP / 2 if upper else 0), inner)
    boxes += clients
    below, y = _labels(lower + aside, centres, clients[0].bottom + 1.5 * GAP)
    if "helper" in given:
        boxes.append(_box("helper", given["helper"], MARGIN, y + GAP / 2, WIDTH - 2 * MARGIN))
        y = boxes[-1].bottom + MARGIN
    drawing = Drawing(y, boxes, labels + below, [], [])

    ends = {box.name: [box] for box in boxes} | {"clients": clients}
    for i, arrow in enumerate(upper):
        drawing.join(arrow, ends, [_line_x(box, i, len(upper)) for box in _clients_of(arrow, ends)])
    for i, (arrow, label) in enumerate(zip(lower, below, strict=False)):
        xs = [_line_x(box, i, len(lower)) for box in _clients_of(arrow, ends)]
        if arrow.joins("clients", "clients"):
            hidden = label.width > max(xs) - min(xs) - 2 * GAP  # then the line goes above the label
            drawing.join_clients(arrow, ends, xs, label.y if hidden else label.y + label.height / 2)
        else:
            drawing.join(arrow, ends, xs)
    for i, arrow in enumerate(aside):
        drawing.join(arrow, ends, [WIDTH - MARGIN - 10 - 20 * i])
    return drawing


def _labels(arrows: list[Arrow], centres: dict[Arrow, float], y: float) -> tuple[list[Label], float]:
    """Return labels below each other from y on, and the y of the next element."""
    labels = []
    for arrow in arrows:
        labels.append(_label(arrow, y, centres[arrow]))
        y += labels[-1].height + GAP
    return labels, y


def _clients_of(arrow: Arrow, ends: dict[str, list[Box]]) -> list[Box]:
    """Return the clients at both ends of an arrow, without repetition."""
    found = [
        box for end in (arrow.source, arrow.target) if Arrow.group(end) == "clients" for box in ends[end]
    ]
    return list(dict.fromkeys(found))


def _line_x(box: Box, i: int, count: int) -> float:
    """Return the x at which the i-th of several parallel lines meets a box."""
    return box.middle + 18 * (i - (count - 1) / 2)


def _client_middles(names: list[str], inner: float) -> dict[str, float]:
    step = (inner + GAP) / len(names)
    return {name: MARGIN + step * i + (step - GAP) / 2 for i, name in enumerate(names)}


def _centre(arrow: Arrow, middles: dict[str, float]) -> float:
    """Return the middle of the clients that an arrow connects, which is the position of its label."""
    ends = [middles[end] for end in (arrow.source, arrow.target) if end in middles]
    return sum(ends) / len(ends) if ends else WIDTH / 2


def _client_boxes(given: dict[str, Any], y: float, inner: float) -> list[Box]:
    names = given["clients"]
    holds = given.get("clients_hold", "")
    texts = holds if isinstance(holds, list) else [holds] * len(names)
    if len(texts) != len(names):
        raise ValueError(f"clients_hold has {len(texts)} texts for {len(names)} clients")
    width = (inner - GAP * (len(names) - 1)) / len(names)
    boxes = [
        _box(name, text, MARGIN + i * (width + GAP), y, width)
        for i, (name, text) in enumerate(zip(names, texts, strict=True))
    ]
    height = max(box.height for box in boxes)
    return [Box(box.name, box.holds, box.x, y, width, height) for box in boxes]


def _box(name: str, text: str, x: float, y: float, width: float) -> Box:
    holds = textwrap.wrap(text, int((width - 8) / CHARACTER), break_long_words=False)
    return Box(name, tuple(holds), x, y, width, LINE * (1 + len(holds)) + 14)


def _label(arrow: Arrow, y: float, centre: float) -> Label:
    lines = textwrap.wrap(f"{arrow.sign} {arrow.text}".strip(), 48)
    width = min(max(map(len, lines)) * CHARACTER + 18, WIDTH - 2 * MARGIN)
    x = min(max(centre - width / 2, MARGIN), WIDTH - MARGIN - width)
    return Label(lines, x, y, width, LINE * len(lines) + 7, arrow.kind)


class FlowPicture(Directive):
    """The directive `flow-picture`."""

    has_content = True
    option_spec = {"alt": directives.unchanged}  # noqa: RUF012  (docutils reads it from the class)

    def run(self) -> list[nodes.Node]:
        try:
            svg = flow_picture("\n".join(self.content), self.options.get("alt", ""))
        except (ValueError, yaml.YAMLError) as error:
            raise self.error(str(error)) from error
        return [nodes.raw("", f'<div class="flow-picture">{svg}</div>', format="html")]


def first_picture(page: str) -> str:
    """Draw the first flow-picture of a page.

    Args:
        page: The Markdown text of the page.

    Returns:
        A whole SVG file as text.
    """
    found = re.search(
        r"^```\{flow-picture\}\n(?::alt: (?P<alt>[^\n]*)\n)?(?P<body>.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    if found is None:
        raise ValueError("the page has no flow-picture")
    return flow_picture(found["body"], found["alt"] or "") + "\n"


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("flow-picture", FlowPicture)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    docs = Path(__file__).resolve().parents[1]
    drawn = docs / "images" / "federation.svg"
    drawn.write_text(first_picture((docs / "index.md").read_text()))
    print(drawn)
