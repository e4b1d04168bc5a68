"""The custom resource definitions of the chart are those of the models, and structural."""

from typing import Annotated

import pytest
from pydantic import Field

from tandem.contracts import crds
from tandem.contracts.base import Message
from tandem.contracts.resources import Condition, GPUNodeStatus


def walk(schema):
    yield schema
    for child in schema.get("properties", {}).values():
        yield from walk(child)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from walk(schema[key])


@pytest.mark.parametrize("name", crds.files())
def test_the_chart_has_what_the_models_say(name):
    assert (crds.FOLDER / name).read_text() == crds.files()[name], (
        "run python -m tandem.contracts.crds --write"
    )


def test_the_chart_has_no_others():
    assert {path.name for path in crds.FOLDER.iterdir()} == set(crds.files())


@pytest.mark.parametrize("definition", crds.DEFINITIONS, ids=lambda each: each.kind)
def test_schemas_are_structural(definition):
    (version,) = definition.manifest()["spec"]["versions"]
    for schema in walk(version["schema"]["openAPIV3Schema"]):
        assert schema["type"] in {"object", "array", "string", "integer", "number", "boolean"}
        assert not schema.keys() & {"$ref", "anyOf", "default", "title", "readOnly"}


@pytest.mark.parametrize("definition", crds.DEFINITIONS, ids=lambda each: each.kind)
def test_columns_show_fields_that_exist(definition):
    (version,) = definition.manifest()["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    for column in version["additionalPrinterColumns"]:
        schema = root
        for step in column["jsonPath"].lstrip(".").split("."):
            if step == "metadata":
                break
            name, _, index = step.partition("[")
            schema = schema["properties"][name]
            schema = schema["items"] if index else schema
        else:
            expected = "string" if column["type"] == "date" else column["type"]
            assert schema["type"] == expected, column


def test_optional_and_bounds_and_names_in_words():
    class Part(Message):
        """It has `some_name`."""

        some_name: Annotated[int, Field(ge=1)] | None = None
        tags: dict[str, int] = {}

    assert crds.structural_schema(Part) == {
        "type": "object",
        "description": "It has `someName`.",
        "properties": {
            "someName": {"type": "integer", "format": "int64", "minimum": 1},
            "tags": {
                "type": "object",
                "additionalProperties": {"type": "integer", "format": "int64"},
            },
        },
    }


def test_a_keyword_that_would_be_lost_is_an_error():
    class Part(Message):
        share: Annotated[int, Field(multiple_of=2)]

    with pytest.raises(ValueError, match="multipleOf"):
        crds.structural_schema(Part)


def test_a_number_above_zero_is_one_whose_minimum_does_not_count():
    class Part(Message):
        share: Annotated[float, Field(gt=0)]

    share = crds.structural_schema(Part)["properties"]["share"]
    assert (share["minimum"], share["exclusiveMinimum"]) == (0.0, True)


def test_conditions_are_merged_by_type():
    conditions = crds.structural_schema(GPUNodeStatus)["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert conditions["items"]["required"] == ["type", "status", "lastTransitionTime"]
    assert Condition.model_fields["last_transition_time"].is_required()


def test_main_says_what_is_out_of_date(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(crds, "FOLDER", tmp_path / "crds")
    monkeypatch.setattr("sys.argv", ["crds"])
    assert crds.main() == 1
    assert "gpujobs.yaml" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["crds", "--write"])
    assert crds.main() == 0
    monkeypatch.setattr("sys.argv", ["crds"])
    assert crds.main() == 0
