"""The programs of docs/exporting.md, run as they are printed, give graphs that can be read."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from predictor.service.sandbox import Sandbox

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".venv-corpus" / "bin" / "python"
PAGE = (ROOT / "docs" / "exporting.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
#: How a program of a framework counts the parameters of its model.
COUNTS = {
    "import torch": "print(sum(p.numel() for p in model.parameters()))",
    "import tensorflow": "print(model.count_params())",
    "from flax": "print(784 * 256 + 256 + 256 * 10 + 10)",
}


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no exporters in .venv-corpus: make corpus")
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_program_of_the_page_exports_a_graph(block: str, tmp_path: Path) -> None:
    (count,) = (line for mark, line in COUNTS.items() if mark in block)
    (tmp_path / "export.py").write_text(block + count + "\n")
    answer = subprocess.run(
        [PYTHON, "export.py"],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    with Sandbox() as sandbox:
        parsed = sandbox.parse_file([(tmp_path / "model.onnx").read_bytes()])
    assert parsed.features.parameters == pytest.approx(int(answer.stdout.split()[-1]), rel=0.01)
    assert not parsed.features.unknown_operators
    assert parsed.features.flops > 0
    assert parsed.features.activation_bytes > 0


def test_the_page_has_a_program_for_each_framework() -> None:
    assert len(BLOCKS) >= 6
    assert all(any(mark in block for block in BLOCKS) for mark in COUNTS)
