"""Stored models are read without XGBoost: as its own JSON has them, and nothing half-read."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from predictor.artifacts import serving
from predictor.interference import KIND, PART
from predictor.ubjson import read


def _shipped() -> bytes:
    found = serving(None, KIND)
    assert found is not None
    return found[0][PART]


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | np.ndarray):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, np.number | int | float) else value


@pytest.mark.slow
def test_a_model_reads_as_xgboost_itself_writes_it_in_json():
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(_shipped()))
    expected = json.loads(booster.save_raw("json"))
    found, expected = _plain(read(_shipped())), _plain(expected)
    trees = [m["learner"]["gradient_booster"]["model"].pop("trees") for m in (found, expected)]
    assert found == expected
    for ours, theirs in zip(*trees, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"tree_param"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6)


def test_what_is_cut_off_or_no_ubjson_is_refused():
    whole = _shipped()
    for data in (b"", b"{", b"junk", whole[:-1], whole[: len(whole) // 2], whole + b"x", b"[]"):
        with pytest.raises(ValueError, match=r".+"):
            read(data)


def test_the_service_starts_without_xgboost():
    program = (
        "import sys\n"
        "from predictor.interference import open_interference\n"
        "from predictor.load_model import open_load\n"
        "import predictor.app\n"
        "assert open_interference(None)._learned is not None\n"
        "open_load(None)\n"
        "sys.exit('xgboost' in sys.modules or 'scipy' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
