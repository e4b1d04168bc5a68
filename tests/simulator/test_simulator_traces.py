"""Readers: every format, and what a bad row says."""

import json
from pathlib import Path

import pytest

from tandem.errors import TandemError, UsageError
from tandem.simulator.traces import read_trace

HEAD = "job_id,submit_time_s,num_gpus,duration_s"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_jobs_come_in_order_of_submission_from_zero_on(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path / "t.csv", HEAD, "b,30,2,5", "a,10,1,7.5"))
    assert [(j.id, j.submit_s, j.gpus, j.duration_s) for j in read.jobs] == [
        ("a", 0, 1, 7.5),
        ("b", 20, 2, 5),
    ]


def test_optional_columns_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        f"{HEAD},model,gpu_util,memory_gib,memory_peak_gib,peak_probability",
        "a,0,1,7,bert,40,3,5,0.2",
    )
    (job,) = read_trace(path).jobs
    assert (job.model, job.gpu_utilisation, job.memory_base_gib) == ("bert", 40, 3)
    assert (job.memory_peak_gib, job.peak_probability) == (5, 0.2)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,0,0,5", "num_gpus '0' must be at least 1"),
        ("x,0,1.5,5", "num_gpus '1.5' is not a whole number"),
        ("x,0,1e98,5", "num_gpus '1e98' must be at most 1e+12"),
        ("x,soon,1,5", "submit_time_s 'soon' is not a number"),
        ("x,0,1,0", "duration_s '0' must be above 0"),
        ("x,0,1,nan", "duration_s 'nan' is not a number"),
        ("x,0,1", "the number of fields differs"),
        ("x,0,1,5,6", "the number of fields differs"),
        ("a,0,1,5", "job_id 'a' is there twice"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_counted(
    tmp_path: Path, row: str, reason: str
) -> None:
    path = write(tmp_path / "t.csv", HEAD, "a,0,1,5", row)
    read = read_trace(path)
    ((line, why),) = read.skipped
    assert line == 3
    assert reason in why
    with pytest.raises(TandemError, match="line 3"):
        read_trace(path, strict=True)


def test_an_unknown_column_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", f"{HEAD},gpu_utl", "a,0,1,5,30")
    with pytest.raises(TandemError, match="unknown column 'gpu_utl'") as caught:
        read_trace(path)
    assert "gpu_util" in caught.value.hint


def test_a_missing_column_and_an_empty_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="no column num_gpus"):
        read_trace(write(tmp_path / "t.csv", "job_id,submit_time_s,duration_s", "a,0,5"))
    with pytest.raises(TandemError, match="no usable job"):
        read_trace(write(tmp_path / "e.csv", HEAD))
    with pytest.raises(TandemError, match="No such file"):
        read_trace(tmp_path / "absent.csv")


def test_an_unknown_format_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_trace(tmp_path / "t.csv", "phily")
    assert "philly" in caught.value.hint


def test_philly(tmp_path: Path) -> None:
    attempt = {
        "start_time": "2017-10-03 10:00:00",
        "end_time": "2017-10-03 10:05:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
    }
    ran = {"jobid": "a", "submitted_time": "2017-10-03 09:00:00", "attempts": [attempt, attempt]}
    never = {"jobid": "b", "submitted_time": "2017-10-03 09:00:00", "attempts": []}
    path = write(tmp_path / "log.json", json.dumps([ran, never]))
    read = read_trace(path, "philly")
    assert [(j.id, j.gpus, j.duration_s) for j in read.jobs] == [("a", 3, 600)]
    assert read.skipped == ((2, "no attempt with a start and an end"),)


def test_alibaba_counts_a_share_of_a_gpu_as_one(tmp_path: Path) -> None:
    path = write(
        tmp_path / "pai.csv",
        "j1,worker,2,Terminated,100,400,600,29,150,V100",
        "j2,ps,1,Terminated,150,400,600,29,,",
        "j3,tensorflow,1,Terminated,200,260,600,29,25,T4",
    )
    read = read_trace(path, "alibaba")
    assert [(j.id, j.gpus, j.duration_s) for j in read.jobs] == [
        ("j1/worker", 4, 300),
        ("j3/tensorflow", 1, 60),
    ]
    assert read.skipped == ((2, "asks for no GPU"),)


def test_helios(tmp_path: Path) -> None:
    path = write(
        tmp_path / "helios.csv",
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue",
        "7,u,vc,8,32,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:00,2020-04-01 00:02:00,60,50",
        "8,u,vc,0,32,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:00,2020-04-01 00:02:00,60,50",
    )
    read = read_trace(path, "helios")
    assert [(j.id, j.gpus, j.duration_s) for j in read.jobs] == [("7", 8, 60)]
    assert read.skipped == ((3, "asks for no GPU"),)
