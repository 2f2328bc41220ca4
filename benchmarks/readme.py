"""Write benchmarks/README.md from its template and the records.

    python benchmarks/readme.py

README.md.jinja contains the text, and calls the functions of docs/_ext/recorded_figures.py for figures. A
figure that no record has, or a sentence that a record contradicts, ends the program with an error.
tests/docs/test_benchmarks_readme.py fails if README.md differs from what this program writes."""

import sys
from pathlib import Path

import devices
from defaults import cost, score, table_of

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "docs/_ext"))

from recorded_figures import Records  # noqa: E402


def written(records: Records) -> str:
    """Return the text of benchmarks/README.md.

    Args:
        records: The records that its figures are taken from.
    """
    runs = records.record("defaults")["runs"]
    template = (HERE / "README.md.jinja").read_text()
    tables = {"scores": table_of(runs, score), "costs": table_of(runs, cost)}
    return records.render(template, devices=devices.table_of(records.record("devices")["cases"]), **tables)


if __name__ == "__main__":
    (HERE / "README.md").write_text(written(Records(HERE / "results")))
