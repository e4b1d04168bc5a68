"""Files as people have them: no content gives a traceback, and none is read as something else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import TandemError, UsageError
from tandem.files import read_csv, read_json, read_yaml
from tandem.simulator.gavel import load_matrix
from tandem.simulator.settings import read_profile
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
TRUTH = {"v100": {"a": {"null": 1.0, "b": [0.5, 0.5]}, "b": {"null": 1.0, "a": [0.5, 0.5]}}}


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


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "csv": (CSV, read_trace),
    "philly": (json.dumps(PHILLY), lambda path: read_trace(path, "philly")),
    "alibaba": ("a,t,1,x,1,20,0,0,100,V100\n", lambda path: read_trace(path, "alibaba")),
    "helios": (
        "job_id,submit_time,gpu_num,duration\na,2020-01-01 00:00:00,1,10\n",
        lambda path: read_trace(path, "helios"),
    ),
    "truth": (json.dumps(TRUTH), lambda path: load_matrix(path, "v100")),
    "profile": ("description: d\norder: {kind: fifo}\n", lambda path: read_profile(str(path))),
    "json": ('{"a": [1, 2]}', read_json),
    "yaml": ("a: [1, 2]\nb: {c: d}\n", read_yaml),
    "rows": (CSV, lambda path: list(read_csv(path))),
}


@pytest.mark.parametrize("kind", READERS)
def test_no_mutated_file_raises_anything_but_a_usage_error(
    kind: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    text, read = READERS[kind]
    file = tmp_path / "file.yaml"
    outcomes = {"read": 0, "refused": 0}
    for _ in range(300):
        file.write_bytes(mutated(text.encode(), rng))
        try:
            read(file)
            outcomes["read"] += 1
        except TandemError:
            outcomes["refused"] += 1
    assert outcomes["refused"]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return the content with a few bytes changed, removed, doubled or put in."""
    data = bytearray(content)
    odd = [b'"', b"\x00", b"\xff", b"[", b"{", b"\n", b",", b"9" * 400, b"-1", b"1e999", b"NaN",
           b"\xef\xbb\xbf", b"\r", b"null", b"'", b"\xe2\x80\xa8"]  # fmt: skip
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randint(1, 20)]
            case 2:
                data[at:at] = data[at : at + 30]
            case _:
                data[at:at] = rng.choice(odd)
    return bytes(data)
