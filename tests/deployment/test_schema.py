"""Clients whose data does not match are refused with both names, what differs and the fix."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfed.errors import InputError
from graphfed.tasks.graphs.schema import Schema, compare_schemas

texts = st.lists(st.text(max_size=4), max_size=4).map(tuple)
schemas = st.builds(
    Schema,
    texts,
    texts,
    st.booleans(),
    st.sampled_from(["id", "client and id"]),
    st.sampled_from(["column", "hash"]),
) | st.builds(Schema, texts, texts, st.booleans(), st.just("exported"), st.just("exported"))


@given(schema=schemas)
def test_a_schema_survives_json(schema: Schema) -> None:
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@given(one=schemas, other=schemas)
def test_two_schemas_go_together_exactly_if_all_that_is_known_is_the_same(one: Schema, other: Schema) -> None:
    def agree(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
        return len(first) == len(second) and all(
            a == b or "" in (a, b) for a, b in zip(first, second, strict=True)
        )

    same = agree(one.feature_names, other.feature_names) and agree(one.class_names, other.class_names)
    same = same and (one.weighted, one.ids, one.parts) == (other.weighted, other.ids, other.parts)
    if same:
        compare_schemas({"a": one, "b": other})
    else:
        with pytest.raises(InputError, match=r"(?s)'a'.*'b'|'b'.*'a'"):
            compare_schemas({"a": one, "b": other})


FORM = Schema(("age", "income"), ("no", "yes"), False, "id", "column")


DIFFERENT: list[tuple[dict[str, Any], str]] = [
    ({"feature_names": ("age",)},
     "client 'a' has 2 features and client 'c' has 1; name the same features in the same order in each "
     "description: "
     "'features: [age, income]'"),
    ({"feature_names": ("age", "debt")}, "feature 2 is 'income' at client 'a' and 'debt' at client "
     "'c'; name"),
    ({"class_names": ("yes",)},
     "the classes are [no, yes] at client 'a' and [yes] at client 'c'; name all classes in each "
     "description, in "
     "the same order: 'classes: [no, yes]'"),
    ({"class_names": ("no", "yes", "unclear")}, "'classes: [no, yes, unclear]'"),
    ({"class_names": ("yes", "no")}, "the classes are [no, yes] at client 'a' and [yes, no] at client 'c'"),
    ({"class_names": ()}, "and none at client 'c'"),
    ({"weighted": True}, "the edges of client 'c' have weights and those of client 'a' have none; "
     "name the column of weights"),
    ({"ids": "client and id"}, "edges name the client of each endpoint at client 'c' and not at client 'a'"),
    ({"parts": "hash"}, "client 'a' has a column with parts of the split and client 'c' has none; add the "
     "column"),
    ({"ids": "exported", "parts": "exported"}, "client 'c' has an exported cohort file and client 'a' has a "
     "description of its own files"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), DIFFERENT)
def test_what_differs_between_clients_is_named_with_both_clients_and_the_fix(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        compare_schemas({"a": FORM, "b": FORM, "c": dataclasses.replace(FORM, **changes)})
    assert message in str(refused.value)
    compare_schemas({"a": FORM, "b": FORM})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the schema of x must have the keys feature_names, .*, filled and no others; found N"),
        ({"weighted": True}, r"found \['weighted'\]"),
        ({**FORM.to_json(), "rows": 3}, "and no others"),
        ({**FORM.to_json(), "feature_names": "age"}, "feature_names must be a list of texts; found 'age'"),
        ({**FORM.to_json(), "class_names": [1]}, "class_names must be a list of texts; found list"),
        ({**FORM.to_json(), "weighted": 1}, "weighted must be true or false; found 1"),
        ({**FORM.to_json(), "ids": "name"}, "ids must be one of .* found 'name'"),
        ({**FORM.to_json(), "parts": []}, "parts must be one of .* found list"),
        ({**FORM.to_json(), "ids": "exported"}, "must both be 'exported', or neither"),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused(content: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schema.from_json(content, "the schema of x")
