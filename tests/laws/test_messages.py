"""Every transfer has words for those who must answer for it, and no words are left over."""

import pytest
from methods_under_law import METHODS
from worlds import make_world, run_local

from graphfed.experiment.train import MESSAGES
from graphfed.methods.registry import get_method

#: Where a setting decides which transfers there are: all of its values.
VARIANTS = {"fedgcn": [{"hops": 1}, {"hops": 2}]}


@pytest.mark.parametrize("name", METHODS)
def test_the_words_of_a_method_are_those_of_its_transfers(name: str) -> None:
    names: set[str] = set()
    for settings in VARIANTS.get(name, [{}]):
        _, fed = run_local(name, make_world(), **settings)
        names |= {entry.name for entry in fed.ledger.entries}
    assert names == {*get_method(name).messages, *MESSAGES}
    for words in get_method(name).messages.values():
        assert words.endswith(".")
