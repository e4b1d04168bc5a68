"""Files as people have them: no content gives a traceback, and none is read as something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.errors import UsageError
from tandem.files import read_json, read_yaml
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.gavel import load_matrix
from tandem.simulator.settings import read_profile
from tandem.simulator.spread import load_spread
from tandem.simulator.traces import read_trace

CSV = "job_id,submit_time_s,num_gpus,duration_s\na,0,1,100\nb,10,2,50\n"
PHILLY = [
    {
        "jobid": "j",
        "submitted_time": "2017-10-09 07:07:09",
        "attempts": [
            {"start_time": "2017-10-09 07:08:00", "end_time": "2017-10-09 07:09:00", "detail": []},
            {
                "start_time": "2017-10-09 07:10:00",
                "end_time": "2017-10-09 07:20:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            },
        ],
    }
]


@pytest.mark.parametrize(
    "encoded",
    [CSV.encode("utf-8-sig"), CSV.encode("utf-16"), CSV.replace("\n", "\r\n").encode()],
    ids=["byte-order mark", "UTF-16", "CRLF"],
)
def test_a_trace_as_a_spreadsheet_writes_it_is_read(tmp_path: Path, encoded: bytes) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(encoded)
    assert [job.gpus for job in read_trace(file).jobs] == [1, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('job_id,submit_time_s,num_gpus,duration_s\n"a,0,1,100\nb,10,2,50\n', "line 2"),
        ("job_id;submit_time_s;num_gpus;duration_s\na;0;1;100\n", "semicolons"),
        ("job_id,job_id,submit_time_s,num_gpus,duration_s\na,b,0,1,100\n", "there twice"),
        ("", "no column"),
        ("\n\n", "no column"),
        ("job_id,submit_time_s,num_gpus,duration_s\n" + "a" * 2**21 + ",0,1,1\n", "line 2"),
    ],
    ids=["open quote", "semicolons", "column twice", "empty", "blank lines", "giant field"],
)
def test_a_damaged_trace_is_refused_with_the_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_trace(file)
    assert str(file) in refused.value.message
    assert said in refused.value.message
    assert refused.value.hint


def test_a_trace_that_is_no_text_is_refused_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(CSV.encode() + b"\x8f\x00\xff")
    with pytest.raises(UsageError, match="line 4 is not text"):
        read_trace(file)


def test_the_attempt_that_has_gpus_counts(tmp_path: Path) -> None:
    file = tmp_path / "philly.json"
    file.write_text(json.dumps(PHILLY))
    (job,) = read_trace(file, "philly").jobs
    assert (job.gpus, job.duration_s) == (2, 660.0)


def test_times_without_a_zone_are_the_same_on_every_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The night of 5 November 2017 has an hour twice where clocks change."""
    import time

    jobs = [
        {**PHILLY[0], "jobid": str(hour), "submitted_time": f"2017-11-05 0{hour}:30:00"}
        for hour in (0, 3)
    ]
    file = tmp_path / "philly.json"
    file.write_text(json.dumps(jobs))
    read = []
    for zone in ("UTC", "America/Los_Angeles"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        read.append([job.submit_s for job in read_trace(file, "philly").jobs])
    monkeypatch.delenv("TZ")
    time.tzset()
    assert read[0] == read[1] == [0.0, 3 * 3600.0]


def test_an_infinite_number_of_gpus_is_a_bad_row(tmp_path: Path) -> None:
    file = tmp_path / "alibaba.csv"
    file.write_text("a,t,1e999,x,1,2,0,0,100,V100\nb,t,1,x,1,2,0,0,100,V100\n")
    read = read_trace(file, "alibaba")
    assert len(read.jobs) == len(read.skipped) == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "\ufeff{", "{", "", "1e999999", "\udc80"])
def test_a_truth_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "truth.json"
    file.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(UsageError):
        load_matrix(file, "v100")


@pytest.mark.parametrize(
    "text", ["a: [", "- " * 5000, "2001-99-99: 1", "? [a]\n: b", "\x00", "{" * 5000, "&a [*a]"]
)
def test_a_profile_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(text)
    with pytest.raises(UsageError):
        read_profile(str(file))


@pytest.mark.parametrize("setting", ["order.slice_s=[", "order=1", "=", "order.slice_s", "a.b.c=1"])
def test_a_setting_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        read_profile("tiresias-l", [setting])


TRACES: dict[str, str] = {
    "csv": "job_id,submit_time_s,num_gpus,duration_s\na,{0},1,100\nb,1,1,1\n",
    "alibaba": "a,t,{0},x,1,20,0,0,100,V100\nb,t,1,x,1,2,0,0,100,V100\n",
    "helios": "job_id,submit_time,gpu_num,duration\n"
    "a,2020-01-01 00:00:00,{0},1\nb,2020-01-01 00:00:00,1,1\n",
}


@pytest.mark.parametrize("kind", TRACES)
@pytest.mark.parametrize("number", ["1_0", "١", "0x1", "nan", "infinity", "\x0c1", "1 0"])
def test_what_other_programs_take_for_no_number_is_a_bad_row(
    kind: str, number: str, tmp_path: Path
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(TRACES[kind].format(number))
    read = read_trace(file, kind)
    assert len(read.jobs) == len(read.skipped) == 1
    assert "not a number" in read.skipped[0][1]


@pytest.mark.parametrize("kind", ["alibaba", "helios"])
def test_a_part_of_a_gpu_is_not_rounded_to_another_number(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(TRACES[kind].format("1.7"))
    read = read_trace(file, kind)
    assert len(read.jobs) == 1
    assert "not a whole number" in read.skipped[0][1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"jobid": 7}, "jobid"),
        ({"jobid": ["j"]}, "jobid"),
        ({"attempts": [PHILLY[0]["attempts"][1] | {"detail": [{"gpus": "gpu0"}]}]}, "detail"),
        ({"attempts": [PHILLY[0]["attempts"][1] | {"detail": {"gpus": 4}}]}, "detail"),
        (
            {"attempts": [*PHILLY[0]["attempts"], PHILLY[0]["attempts"][0] | {"detail": 1}]},
            "detail",
        ),
        ({"attempts": [PHILLY[0]["attempts"][1] | {"end_time": "2017-10-09"}]}, "before it starts"),
    ],
)
def test_a_record_of_another_shape_is_a_bad_row(change: dict, said: str, tmp_path: Path) -> None:
    """Text has a length as well: the five characters of `gpu0,` were five GPUs."""
    file = tmp_path / "philly.json"
    file.write_text(json.dumps([{**PHILLY[0], **change}, PHILLY[0]]))
    read = read_trace(file, "philly")
    assert len(read.jobs) == len(read.skipped) == 1
    assert said in read.skipped[0][1]


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', "NaN", "[Infinity]", "-Infinity"])
def test_json_that_programs_read_in_different_ways_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"is there twice|no number in JSON"):
        read_json(file)


def test_a_key_that_is_twice_in_a_yaml_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("a: 1\nb: {c: 1}\na: 2\n")
    with pytest.raises(UsageError, match=r"line 3 .*'a' is there twice"):
        read_yaml(file)
    file.write_text("x: {b: &b {<<: &a {k: 1}, k: 2}}\nc: {<<: *b, k: 3}\n")
    assert read_yaml(file) == {"x": {"b": {"k": 2}}, "c": {"k": 3}}


@pytest.mark.parametrize("rate", ["0.5", [0.5], True, -1, None, 10**400])
def test_a_rate_that_is_none_is_refused(rate: object, tmp_path: Path) -> None:
    file = tmp_path / "truth.json"
    for pair in ([0.5, rate], [rate, 0.5], "05"):
        solo = {"null": 1.0}
        file.write_text(json.dumps({"v100": {"a": solo | {"b": pair}, "b": solo | {"a": [1, 1]}}}))
        with pytest.raises(UsageError, match="no table of pair throughputs"):
            load_matrix(file, "v100")


def test_a_pair_of_a_model_without_a_rate_alone_is_refused(tmp_path: Path) -> None:
    """It would count as one that nothing slows down."""
    file = tmp_path / "truth.json"
    file.write_text(json.dumps({"v100": {"a": {"null": 0, "a": [1, 1]}}}))
    with pytest.raises(UsageError, match="has no rate alone"):
        load_matrix(file, "v100")


@pytest.mark.parametrize(
    "gangs", ["x", {"('a', 2)": {}}, {"('a', 2)": "x"}, {"('a', 2)": {"null": "1"}}]
)
def test_rates_of_gangs_that_are_none_are_refused(gangs: object, tmp_path: Path) -> None:
    file = tmp_path / "truth.json"
    table = {"('a', 1)": {"null": 1.0}, "('a', 2)": {"null": 2.0}}
    file.write_text(json.dumps({"v100": table, "v100_unconsolidated": gangs}))
    with pytest.raises(UsageError, match="no table of gangs"):
        load_spread(file, "v100")


@pytest.mark.parametrize(
    "name", ["(", "('a', 2", "('a', '2')", "('a',)", "(" * 9999, "('a', 1, 2)"]
)
def test_a_name_that_is_no_tuple_is_that_of_a_model(name: str, tmp_path: Path) -> None:
    file = tmp_path / "truth.json"
    file.write_text(json.dumps({"v100": {name: 1}, "v100_unconsolidated": {name: 1}}))
    assert load_spread(file, "v100") is None


@pytest.mark.parametrize(
    "text", ["max_jobs_per_gpu: yes", "order: {kind: queues, thresholds_gpu_s: [on]}"]
)
def test_a_truth_value_is_no_number_of_a_profile(text: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(f"name: x\nconstraints: []\n{text}\n")
    with pytest.raises(UsageError, match="truth value"):
        read_profile(str(file))


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("9" * 5000 + "x1", "is not NODESxGPUS:TYPE"),
        ("1x1:V100-" + "9" * 400 + "G", "is not NODESxGPUS:TYPE"),
        ("١x١", "is not NODESxGPUS:TYPE"),
        ("1000001x1", "more than 1,000,000 GPUs"),
        ("9999999x9999999:V100", "more than 1,000,000 GPUs"),
    ],
)
def test_a_cluster_beyond_all_measure_is_refused(cluster: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        parse_cluster(cluster)
    assert len(refused.value.message) < 200
