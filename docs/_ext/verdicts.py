"""The directive `verdicts`: the printed claims of a paper, each with what the records say about it.

A claim of docs/papers/claims.yaml lists comparisons between figures of records. A comparison holds if the
95 % interval over the seeds lies on the side that the claim states, does not hold if it lies on the other
side, and is undecided otherwise, or with one seed. The build fails if the verdict on a claim is not the one
that the file states, because the cause that the file gives explains that verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from from_the_program import text_table
from recorded_figures import RecordError, Records
from records import RecordDirective
from sphinx.application import Sphinx

from graphfed.errors import shown
from graphfed.studies.paired import PairedDifference, paired_difference

HOLDS, FAILS, UNDECIDED, PARTLY = "holds", "does not hold", "undecided", "holds partly"
Claim = Mapping[str, Any]
#: The keys of a claim, of an entry of `compare` and of an entry of `near`; those in brackets are optional.
REQUIRED = {"paper", "source", "claim", "verdict"}
OPTIONAL = {"cause", "compare", "near"}
COMPARE = {"item", "metric", "ahead", "of", "by", "percent", "smaller"}
NEAR = {"item", "metric", "rows", "within"}


@dataclass(frozen=True)
class Finding:
    """What the records say about one comparison: its item, a text with our figures, and the verdict."""

    item: str
    text: str
    verdict: str


@dataclass(frozen=True)
class Judged:
    """A claim with its findings and the verdict on all of them."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """The verdict: "holds partly" if only some comparisons hold, and "does not hold" if none holds and
        some do not."""
        verdicts = {each.verdict for each in self.findings}
        if len(verdicts) == 1:
            return verdicts.pop()
        return PARTLY if HOLDS in verdicts else FAILS


def compare(records: Records, asked: Claim) -> list[Finding]:
    """Compare rows pairwise over their common seeds.

    Args:
        records: The records.
        asked: "ahead" and "of": one row or a list of rows. "by": how much larger the first must be; default
            0. "percent": whether the difference is in percent of the second row, seed by seed. "smaller":
            whether the first must be smaller instead.
    """
    item, metric = asked["item"], asked["metric"]
    found = []
    for one, other in zip(_rows(asked["ahead"]), _rows(asked["of"]), strict=True):
        first, second = records.by_seed(item, one, metric), records.by_seed(item, other, metric)
        seeds = [seed for seed in first if seed in second]
        if not seeds:
            raise RecordError(f"{item}: {shown(one)} and {shown(other)} have no seed in common")
        pairs = [(first[seed], second[seed]) for seed in seeds]
        if asked.get("percent"):
            pairs = [(100 * a / b, 100.0) for a, b in pairs]
        difference = paired_difference(*map(list, zip(*pairs, strict=True)))
        assert difference is not None
        least = float(asked.get("by", 0))
        verdict = (
            _verdict(difference, -math.inf, -least) if asked.get("smaller") else _verdict(difference, least)
        )
        unit = "%" if asked.get("percent") else ""
        found.append(Finding(item, f"{one} minus {other}: {_text(difference, unit)}", verdict))
    return found


def near(records: Records, asked: Claim) -> list[Finding]:
    """Compare our rows with the printed figures.

    Args:
        records: The records.
        asked: "rows": one row or a list of rows. "within": the largest difference to the printed figure.
    """
    item, metric, within = asked["item"], asked["metric"], float(asked["within"])
    found = []
    for row in _rows(asked["rows"]):
        values = [*records.by_seed(item, row, metric).values()]
        printed = records.printed_mean(item, row, metric)
        difference = paired_difference(values, [printed] * len(values))
        assert difference is not None
        text = f"{row}: {sum(values) / len(values):.1f}, printed {printed:.1f}; {_text(difference)}"
        found.append(Finding(item, text, _verdict(difference, -within, within)))
    return found


def _verdict(difference: PairedDifference, above: float, below: float = math.inf) -> str:
    """Return whether a difference is above one bound and below the other."""
    if difference.low is None or difference.high is None:
        return UNDECIDED
    if above < difference.low and difference.high < below:
        return HOLDS
    return FAILS if difference.high < above or difference.low > below else UNDECIDED


def _text(difference: PairedDifference, unit: str = "") -> str:
    places = 1 if abs(difference.mean) >= 1 else 2
    interval = (
        "" if difference.low is None else f" [{difference.low:+.{places}f}, {difference.high:+.{places}f}]"
    )
    seeds = f"{difference.count} seed{'s' if difference.count > 1 else ''}"
    return f"{difference.mean:+.{places}f}{interval}{unit and ' ' + unit} ({seeds})"


def _rows(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def judge(records: Records, claim: Claim) -> Judged:
    """Compute the verdict on a claim.

    Args:
        records: The records.
        claim: An entry of claims.yaml.

    Raises:
        RecordError: The entry is not complete, or names something that no record has.
    """
    name = shown(claim.get("claim", claim))
    if faults := (claim.keys() ^ REQUIRED) - OPTIONAL:
        raise RecordError(f"claim {name}: missing or unknown: {', '.join(sorted(faults))}")
    findings: list[Finding] = []
    for kind, allowed, measure in (("compare", COMPARE, compare), ("near", NEAR, near)):
        for asked in claim.get(kind, ()):
            if asked.keys() - allowed:
                raise RecordError(
                    f"claim {name}: unknown {', '.join(sorted(asked.keys() - allowed))} in {kind}"
                )
            findings += measure(records, asked)
    if not findings:
        raise RecordError(f"claim {name} compares nothing; give it `compare` or `near`")
    return Judged(claim, tuple(findings))


def check(judged: Judged) -> None:
    """Check that a claim states the verdict that the records give, and the cause unless it holds.

    Args:
        judged: The claim with its findings.

    Raises:
        RecordError: It does not.
    """
    claim, name = judged.claim, shown(judged.claim["claim"])
    if judged.verdict != claim["verdict"]:
        figures = "; ".join(f"{each.text}: {each.verdict}" for each in judged.findings)
        raise RecordError(
            f"claim {name} is stated as {claim['verdict']!r}, and the records say {judged.verdict!r}: "
            f"{figures}"
        )
    if judged.verdict != HOLDS and not claim.get("cause"):
        raise RecordError(f"claim {name} is {judged.verdict!r}; give its cause")


class Verdicts(RecordDirective):
    """The table of the claims of one paper."""

    def make_nodes(self, argument: str, records: Records) -> list[nodes.Node]:
        path = Path(self.env.srcdir, "papers", "claims.yaml")
        self.env.note_dependency(str(path))
        claims = [each for each in yaml.safe_load(path.read_text()) if each["paper"] == argument]
        if not claims:
            raise RecordError(f"claims.yaml has no claim of {shown(argument)}")
        lines = []
        for judged in (judge(records, claim) for claim in claims):
            check(judged)
            claim = judged.claim
            several = len({each.item for each in judged.findings}) > 1
            names = [f"{each.item.partition('/')[2]}: " if several else "" for each in judged.findings]
            texts = [each.text for each in judged.findings]
            figures = "\n".join(name + text for name, text in zip(names, texts, strict=True))
            lines.append(
                [f"{claim['claim']} ({claim['source']})", figures, judged.verdict, claim.get("cause", "")]
            )
        return [text_table([["printed claim", "ours, with 95 % interval", "verdict", "cause"], *lines])]


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive."""
    app.add_directive("verdicts", Verdicts)
    return {"parallel_read_safe": True}
