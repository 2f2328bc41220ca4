"""A program that is graphfed's command line with one more paper, `endless`: its two runs never end."""

PROGRAM = """\
import sys
from types import SimpleNamespace

from graphfed.reproductions import reproduce
from graphfed.reproductions.base import Paper, Row, Runs

options = {"data": "digits", "clients": 2, "rounds": 1000000, "checkpoint_every": 0.2}
rows = (Row("averaging", "fedavg"), Row("one hop", "fedgcn", settings={"hops": 1}))
item = Runs(name="small", title="A", source="B", metrics=("accuracy",), options=options, rows=rows)
reproduce.PAPERS = ("endless",)
paper = Paper("endless", "A toy", "Nobody", "nowhere", (item,))
sys.modules["graphfed.reproductions.endless"] = SimpleNamespace(PAPER=paper)

if __name__ == "__main__":  # the processes of --jobs import this file
    from graphfed.cli import main

    sys.exit(main(sys.argv[1:]))
"""
