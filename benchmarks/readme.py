"""Write benchmarks/README.md from its template and the records.

    python benchmarks/readme.py

README.md.jinja has the text, with the functions of docs/_ext/recorded_figures.py in the place of figures. A
figure that no record has, and a sentence that a record contradicts, end the program.
tests/docs/test_benchmarks_readme.py fails where README.md is not what this program writes."""

import sys
from pathlib import Path

from defaults import cost, score, table_of

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "docs/_ext"))

from recorded_figures import Records  # noqa: E402


def written(records: Records) -> str:
    """The README of the benchmarks.

    Args:
        records: What its figures are from.
    """
    runs = records.record("defaults")["runs"]
    template = (HERE / "README.md.jinja").read_text()
    return records.render(template, scores=table_of(runs, score), costs=table_of(runs, cost))


if __name__ == "__main__":
    (HERE / "README.md").write_text(written(Records(HERE / "results")))
