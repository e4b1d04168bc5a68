"""Training that is killed, while it learns or while it stores: what served before serves."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repeated_faults import record, times
from seeds import SEED
from synthetic_profiles import synthetic_profiles

from predictor.artifacts import Artifacts
from predictor.load.model import KIND
from predictor.training.profiles import Origin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LEARNS_S = 600


def publish_old(directory: Path) -> Artifacts:
    artifacts = Artifacts(directory)
    card = {"features": [], "trained_on": {}, "errors": {}, "chosen": "x"}
    artifacts.publish(KIND, {"memory.ubj": b"old"}, card)
    return artifacts


def test_a_kill_while_it_learns_leaves_no_trace(tmp_path):
    """`tandem train` is killed when XGBoost, the last of the candidates, has begun to learn."""
    rng, count = random.Random(SEED), times(2, 10)
    profiles = tmp_path / "profiles.jsonl"
    # For the test alone they pass as measured: the command refuses what was not measured.
    given = [p.model_copy(update={"origin": Origin.MEASURED}) for p in synthetic_profiles()]
    profiles.write_text("".join(json.dumps(p.wire()) + "\n" for p in given))
    artifacts = publish_old(tmp_path / "artifacts")
    before = {file.name: file.read_bytes() for file in (tmp_path / "artifacts").iterdir()}
    command = [sys.executable, "-c", "from tandem.cli.main import main; main()", "train"]
    command += ["--profiles", str(profiles), "--out", str(tmp_path / "artifacts")]
    after_s = []
    for _ in range(count):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            ends = time.monotonic() + LEARNS_S
            while "libxgboost" not in Path(f"/proc/{process.pid}/maps").read_text():
                assert process.poll() is None, process.stdout.read()
                assert time.monotonic() < ends
                time.sleep(0.02)
            after_s.append(rng.uniform(0.5, 3))  # of the seven that are left
            time.sleep(after_s[-1])
            process.send_signal(signal.SIGKILL)
            process.wait()
        # It was killed, and had not ended by itself.
        assert process.returncode == -signal.SIGKILL
        assert {f.name: f.read_bytes() for f in (tmp_path / "artifacts").iterdir()} == before
        assert artifacts.load(KIND)[0] == {"memory.ubj": b"old"}
    record("-", "training killed while it learns", count, seconds_into_it=after_s)


def test_a_kill_while_it_stores_leaves_the_old_model_or_the_new_one(tmp_path):
    """Processes that store models over and over are killed at random moments."""
    rng, count = random.Random(SEED), times(5, 50)
    script = tmp_path / "store.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from predictor.artifacts import Artifacts\n"
        "parts, card = Artifacts(Path(sys.argv[1])).load('load')\n"
        "kept = card.model_dump(exclude={'version', 'parts'})\n"
        "print('ready', flush=True)\n"
        "for n in range(10**9):\n"
        "    new = parts | {'memory.ubj': b'x' * 200_000 + str(n).encode()}\n"
        "    Artifacts(Path(sys.argv[1])).publish('load', new, kept)\n"
    )
    artifacts = publish_old(tmp_path / "artifacts")
    versions = set()
    for _ in range(count):
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "artifacts")], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        parts, found = artifacts.load(KIND)  # raises where anything is half-written
        assert parts["memory.ubj"] == b"old" or parts["memory.ubj"].startswith(b"xxx")
        versions.add(found.version)
    artifacts.rollback(KIND)
    assert artifacts.load(KIND) is not None
    record("-", "training killed while it stores", count, versions=len(versions))
