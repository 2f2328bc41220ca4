"""Whatever pydantic finds wrong is said in one line: where, which value, what is expected."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from graphfed.validation import expected_value, explain_content, keys_of


class Inner(BaseModel):
    model_config = ConfigDict(strict=True)

    count: Annotated[int, Field(ge=0)] = 0


class Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra={"form": "be a mapping"})

    name: str = Field(description="the name")
    sender: str = Field("a", alias="from")
    rate: float | None = Field(None, gt=0, le=1)
    kind: Literal["sum", "mean"] = Field("sum", description="the rule")
    labels: list[str] = Field(["a"], min_length=1, json_schema_extra={"form": "be a list of labels"})
    inner: list[Inner] = []
    path: Path = Path()

    @model_validator(mode="after")
    def _check_name(self) -> "Outer":
        if self.name == "bad":
            raise ValueError("a bad name")
        return self


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], "it must be a mapping (found list)"),
        ({}, "it has no 'name'; add it (the name)"),
        ({"name": 3}, "at name must be text (found 3)"),
        ({"name": True}, "at name must be text (found True); put it in quotes"),
        ({"name": "bad"}, "at a bad name"),
        ({"name": "n", "form": "x"}, "it has an unknown key 'form'; did you mean 'from'?"),
        ({"name": "n", "from": None}, "at from must be text (found None)"),
        ({"name": "n", "rate": 2}, "at rate is 2; expected a number more than 0 and at most 1"),
        ({"name": "n", "rate": "x"}, "at rate is 'x'; expected a number more than 0 and at most 1"),
        ({"name": "n", "kind": "men"}, "at kind is 'men' (the rule); did you mean 'mean'?"),
        ({"name": "n", "labels": "a"}, "at labels must be a list of labels (found 'a')"),
        ({"name": "n", "labels": []}, "at labels must be a list of labels (found none in it)"),
        ({"name": "n", "labels": [1]}, "at labels.0 must be text (found 1)"),
        ({"name": "n", "inner": [{"count": -1}]}, "at inner.0.count is -1; expected at least 0"),
        ({"name": "n", "inner": [3]}, "at inner.0 must be an object (found 3)"),
        ({"name": "n", "inner": {}}, "at inner must be a list (found dict)"),
    ],
)  # fmt: skip
def test_a_fault_is_explained(content: Any, expected: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate(content)
    fault = refused.value.errors(include_url=False)[0]
    assert explain_content(fault, Outer, "it", "at ") == expected


def test_what_a_field_takes_is_said_in_words() -> None:
    fields = keys_of(Outer)
    assert list(fields) == ["name", "from", "rate", "kind", "labels", "inner", "path"]
    words = [expected_value(fields[key]) for key in ("name", "rate", "kind", "path")]
    assert words == ["text", "a number more than 0 and at most 1", "one of sum, mean", "text"]
    assert expected_value(Inner.model_fields["count"]) == "a whole number of at least 0"
