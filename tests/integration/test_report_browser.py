"""The report in a real browser: nothing overflows, overlaps or is empty, on wide and small screens.

Needs Debian's chromium; without it these tests are skipped and counted."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import graphfed
from graphfed import plugins
from graphfed.methods.references import REFERENCES
from graphfed.methods.tasks import FORECASTING
from graphfed.plugins import load_plugin
from graphfed.report.page import write_report

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to look at the report with"),
]

#: Run in a copy of the page, which lies in a frame as wide as the screen to be tried (a window of the browser
#: has at least 500 px): what is measured is sent to the page around it, whose title it becomes.
PROBE = """<script>addEventListener('load', () => {
  const overlaps = [];
  const empty = [];
  document.querySelectorAll('svg').forEach(svg => {
    const name = svg.getAttribute('aria-label');
    const box = svg.getBoundingClientRect();
    const drawn = svg.querySelectorAll('path, use, text').length;
    if (box.width < 100 || box.height < 30 || drawn < 5) empty.push(name);
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()])
      .filter(([, b]) => b.width > 0);
    for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
      const [s, a] = texts[i], [t, b] = texts[j];
      const w = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (w > 1.5 && h > 3) overlaps.push(name + ': ' + s + ' / ' + t);
    }
  });
  const style = getComputedStyle(document.body);
  parent.postMessage(JSON.stringify({
    overflow: document.documentElement.scrollWidth - innerWidth, width: innerWidth, overlaps, empty,
    charts: document.querySelectorAll('svg').length, ink: style.color, paper: style.backgroundColor,
    notes: [...document.querySelectorAll('.note, .warn, a, summary')].map(e => getComputedStyle(e).color),
  }), '*');
});</script>"""
AROUND = """<!doctype html><title></title><script>
addEventListener('message', e => { document.title = 'MEASURED' + e.data + 'END'; });
</script><iframe src="FILE" style="width:WIDTHpx;height:900px;border:0"></iframe>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "table"
    graphfed.compare(["fedavg", "fedgcn"], clients=10, rounds=10, seeds=(0, 1), out=folder)
    return write_report([folder])


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of forecasts, of which some sensors are not trained on."""
    folder = tmp_path_factory.mktemp("forecasts") / "table"
    rows = ["blend_toy", {"method": "blend_toy", "label": "slow", "settings": {"lr": 0.0002}}, "last_value"]
    settings = {"data.sensors": 40, "data.weeks": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_MODULES", dict(plugins._MODULES))
        load_plugin("blend_toy")
        # The others are trained for minutes.
        patch.setitem(REFERENCES, FORECASTING, ("last_value",))
        graphfed.compare(
            rows, data="roads", split="inductive:0.5", seeds=(0, 1), settings=settings, out=folder
        )
        return write_report([folder])


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    return subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--no-first-run", "--disable-extensions",
            f"--user-data-dir={page.parent / 'profile'}",
            "--enable-logging=stderr", *options, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def contrast(one: str, other: str) -> float:
    """The WCAG contrast ratio of two CSS colours."""

    def luminance(colour: str) -> float:
        channels = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def measured(report: Path, width: int, dark: bool) -> dict[str, Any]:
    """What the probe finds in a page on a screen of `width`, which writes nothing to the console."""
    inner = report.with_name(f"inner-{width}-{dark}.html")
    inner.write_text(report.read_text().replace("</body>", f"{PROBE}</body>"))
    outer = report.with_name(f"outer-{width}-{dark}.html")
    outer.write_text(AROUND.replace("FILE", inner.name).replace("WIDTH", str(width)))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = browse(outer, "--window-size=1400,1000", scheme, "--virtual-time-budget=5000", "--dump-dom")
    found = re.search(r"MEASURED(.*?)END", done.stdout)
    assert found, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr
    content: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    assert content["width"] == width
    return content


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize(("which", "charts"), [("report", 8), ("forecasts", 7)])
def test_the_page_fits_its_charts_are_full_and_their_texts_apart(
    which: str, charts: int, width: int, dark: bool, request: pytest.FixtureRequest
) -> None:
    content = measured(request.getfixturevalue(which), width, dark)
    assert content["charts"] == charts
    assert content["overflow"] <= 0
    assert content["empty"] == []
    assert content["overlaps"] == []
    assert (sum(map(int, re.findall(r"\d+", content["paper"])[:3])) < 120) == dark
    assert contrast(content["ink"], content["paper"]) >= 7
    assert min(contrast(colour, content["paper"]) for colour in content["notes"]) >= 4.5


def test_the_names_of_many_sites_stay_apart(tmp_path: Path) -> None:
    rows = [f"{i},branch {i % 40} <b>,{'ab'[i // 40 % 2]},{i % 7}" for i in range(240)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,client,label,x", *rows]))
    (tmp_path / "edges.csv").write_text("\n".join(["source,target", *(f"{i},{i + 1}" for i in range(239))]))
    data = {"nodes": "nodes.csv", "edges": "edges.csv", "id": "id", "client": "client", "label": "label"}
    (tmp_path / "graph.yaml").write_text(json.dumps(data))
    folder = tmp_path / "run"
    graphfed.run("fedavg", data=tmp_path / "graph.yaml", rounds=2, split="random:0.5,0.25,0.25", out=folder)
    content = measured(write_report([folder]), 375, False)
    assert content["overflow"] <= 0
    assert content["empty"] == []
    assert content["overlaps"] == []


@pytest.fixture(scope="module")
def twelve_banks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a column for each of twelve sites, whose names are long, with blanks and without."""
    folder = tmp_path_factory.mktemp("twelve")
    names = [f"{'Savings and Loan Association ' if s % 2 else 'Bankhaus' * 8}{s}" for s in range(12)]
    rows = [f"{i},{names[i % 12]},{'ab'[i // 40 % 2]},{i % 7}" for i in range(240)]
    (folder / "nodes.csv").write_text("\n".join(["id,client,label,x", *rows]))
    (folder / "edges.csv").write_text("\n".join(["source,target", *(f"{i},{i + 1}" for i in range(239))]))
    (folder / "graph.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")
    split = "random:0.5,0.25,0.25"
    graphfed.run("fedgcn", data=folder / "graph.yaml", rounds=2, split=split, out=folder / "run")
    return write_report([folder / "run"])


@pytest.mark.parametrize("width", [1280, 375])
def test_a_column_for_each_of_twelve_sites_scrolls_in_its_own_box(width: int, twelve_banks: Path) -> None:
    content = measured(twelve_banks, width, False)
    assert content["overflow"] <= 0
    assert min(contrast(colour, content["paper"]) for colour in content["notes"]) >= 4.5


def test_on_paper_twelve_sites_fit_the_page(twelve_banks: Path) -> None:
    """The rules of print on a screen as wide as A4 between its margins: nothing scrolls there."""
    paper = twelve_banks.with_name("paper.html")
    paper.write_text(twelve_banks.read_text().replace("@media print {", "@media all {"))
    assert measured(paper, 718, False)["overflow"] <= 0


def test_the_page_can_be_printed(report: Path, tmp_path: Path) -> None:
    browse(report, f"--print-to-pdf={tmp_path / 'report.pdf'}", "--no-pdf-header-footer")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
