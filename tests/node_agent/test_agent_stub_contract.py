"""The simulated driver answers as a real one did: the codes of each call, asked on an H100."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from node_agent.stub import StubGpu, StubState, build, environment

ASKED = json.loads(Path(__file__).with_name("h100-nvml.json").read_text())

#: Runs in a process of its own, which loads the simulated library by the real one's name.
_ASK = """
import json, sys
import pynvml

def code(call, *arguments):
    try:
        getattr(pynvml, call)(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0

def between(first, second, metrics, version=pynvml.NVML_GPM_METRICS_GET_VERSION):
    query = pynvml.c_nvmlGpmMetricsGet_t()
    query.version, query.numMetrics = version, len(metrics)
    query.sample1, query.sample2 = first, second
    for row, metric in zip(query.metrics, metrics):
        row.metricId = metric
    rows = query.metrics[:len(metrics)]
    return code("nvmlGpmMetricsGet", query), [row.nvmlReturn for row in rows]

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
names = {"GPU": gpu, "EVENTS": pynvml.nvmlEventSetCreate(), "SAMPLE": pynvml.nvmlGpmSampleAlloc()}
codes = [
    code(asked["call"], *(names.get(a, a) for a in asked["arguments"]))
    for asked in json.load(sys.stdin)
]
first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
pynvml.nvmlGpmSampleGet(gpu, first)
while between(first, second, [2])[0]:
    pynvml.nvmlGpmSampleGet(gpu, second)  # until the clock has gone on
gpm = {
    "same": between(first, first, [2])[0],
    "none": between(first, second, [])[0],
    "version 7": between(first, second, [2], 7)[0],
    "unknown metric": between(first, second, [999])[1][0],
    "backwards": between(second, first, [2])[0],
}
print(json.dumps([codes, gpm]))
"""


def test_each_call_has_the_code_of_the_real_driver(tmp_path: Path) -> None:
    state, file = StubState(), tmp_path / "state"
    state.gpus = [StubGpu("GPU-0", name="NVIDIA H100 80GB HBM3", gpm=0.5)]
    state.write(file)
    library = build(Path(os.environ.get("XDG_CACHE_HOME", tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        input=json.dumps(ASKED["calls"]), capture_output=True, text=True, check=False,
        env=os.environ | environment(library, file),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    codes, gpm = json.loads(done.stdout)
    differ = [
        (asked["call"], asked["arguments"], asked["code"], code)
        for asked, code in zip(ASKED["calls"], codes, strict=True)
        if code != asked["code"]
    ]
    assert not differ
    assert gpm == ASKED["gpm"]
