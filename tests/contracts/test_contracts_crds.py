"""The custom resource definitions of the chart are those of the models, and structural."""

import re
from typing import Annotated

import pytest
from pydantic import Field

from scheduler_extender.cluster.jobs import seconds
from tandem.contracts import crds
from tandem.contracts.base import Message
from tandem.contracts.resources import Condition, GPUNodeStatus
from tandem.kube.resource import GPU_NODES
from tandem.kube.schema import schema_errors


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


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2026-11-25T15:00:00Z", True),
        ("2026-11-25T15:00:00.123456Z", True),
        ("2026-11-25T15:00:00.123456789+05:45", True),
        ("9999-12-31T23:59:59-23:59", True),
        ("2026-11-25t15:00:00z", False),
        ("2026-11-25T15:00:00x5Z", False),
        ("2026-11-25T15:00:00+99:00", False),
        ("0000-11-25T15:00:00Z", False),
        ("2026-11-25T15:00:00", False),
    ],
)
def test_a_time_that_is_admitted_can_be_read(text: str, read: bool) -> None:
    """The API server's own check of the format lets through most of the others."""
    raw = {"metadata": {"name": "n0"}, "spec": {}, "status": {"observedAt": text}}
    of_nodes = next(each for each in crds.DEFINITIONS if each.kind == "GPUNode")
    schema = of_nodes.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    pattern = schema["properties"]["status"]["properties"]["observedAt"]["pattern"]
    assert (re.search(pattern, text) is not None) == read
    assert (not schema_errors(GPU_NODES, raw)) == read
    if read:
        assert seconds(text) > 0
