"""The directive that draws who sends what (docs/_ext/flow_picture.py)."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("docutils", reason="the extra 'docs' is not installed")


def extension() -> ModuleType:
    """The module as Sphinx loads it: it lies outside the package."""
    spec = importlib.util.spec_from_file_location("flow_picture", ROOT / "docs/_ext/flow_picture.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["flow_picture"] = module
    spec.loader.exec_module(module)
    return module


FLOW = """
clients: ["bank A", "bank B", "bank C"]
clients_hold: "accounts & transfers"
server: "model weights"
helper: "shares"
arrows:
- {from: clients, to: server, text: "gradients, every round"}
- {from: server, to: bank B, text: "a key, once"}
- {from: client, to: client, text: "neighbour sums, once"}
- {from: clients, to: helper, text: "shares"}
- {from: helper, to: server, text: "the sum of the shares"}
"""


def test_the_picture_has_every_participant_and_every_arrow_and_keeps_inside_its_frame() -> None:
    tree = ElementTree.fromstring(extension().flow_picture(FLOW, "Three banks and a server."))
    svg = "{http://www.w3.org/2000/svg}"
    texts = ["".join(element.itertext()) for element in tree.iter(f"{svg}text")]
    for name in ("bank A", "bank B", "bank C", "server", "helper"):
        assert texts.count(name) == 1
    for arrow in ("↑ gradients, every round", "↓ a key, once", "↔ neighbour sums, once", "↓ shares"):
        assert arrow in texts
    assert "↑ the sum of the shares" in texts
    assert tree.attrib["aria-label"] == "Three banks and a server."
    # Three to the server, one to bank B, three between banks, three to the helper, one from it.
    assert len(list(tree.iter(f"{svg}path"))) == 11
    width, height = (float(number) for number in tree.attrib["viewBox"].split()[2:])
    for box in tree.iter(f"{svg}rect"):
        x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("to: bank B", "to: bank D", "bank D"),
        ("helper: ", "aide: ", "aide"),
        ('["bank A", "bank B", "bank C"]', '["bank A"]', "2 to 4"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_refused_with_the_reason(old: str, new: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        extension().flow_picture(FLOW.replace(old, new))
