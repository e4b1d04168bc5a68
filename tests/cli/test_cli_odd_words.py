"""Words that no option can take: exit code 2 and one line that says so, never a traceback."""

from __future__ import annotations

import sys

import pytest

from tandem.cli import reach
from tandem.cli.main import main

NOWHERE = "http://127.0.0.1:9"
PREDICTOR = ("--server", NOWHERE, "--token", "t")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explain", "\udc80", "--server", NOWHERE), "'\\udc80' is no text in UTF-8"),
        (("why", "\udc80", "--server", NOWHERE), "'\\udc80' is no text in UTF-8"),
        (("model", "delete", "\udc80", *PREDICTOR), "'\\udc80' is no text in UTF-8"),
        (("model", "list", "--server", "http://\x1f", "--token", "t"), "is no URL"),
        (("model", "list", "--server", "https://[::"), "is no URL"),
        (("model", "list", "--server", NOWHERE, "--token", "é"), "printable ASCII"),
        (("predict", "--accumulation-steps", "2147483648", *PREDICTOR),
         "--accumulation-steps: Input should be less than or equal to 2147483647"),
        (("predict", "--memory", "9000Pi", *PREDICTOR), "--memory: Input should be less than"),
        (("predict", "--gpu-memory", "9000Pi", *PREDICTOR), "--gpu-memory: Input should be less"),
        (("doctor", "--timeout", "1e999"), "--timeout"),
        (("jobs", "-w", "--interval", "1e30", "--server", NOWHERE), "--interval"),
        (("jobs", "-w", "--interval", "nan", "--server", NOWHERE), "--interval"),
        (("top", "--interval", "inf", "--server", NOWHERE), "--interval"),
        (("top", "--interval", "nan", "--server", NOWHERE), "--interval"),
        (("simulate", "--preemption-cost", "inf"), "'--preemption-cost': Input should be less"),
        (("simulate", "--resize-cost", "inf"), "'--resize-cost': Input should be less"),
        (("simulate", "--belief-error", "inf"), "'--belief-error': Input should be less"),
    ],
    ids=lambda value: " ".join(value[:2]).encode("ascii", "replace").decode()
    if isinstance(value, tuple) else "",
)  # fmt: skip
def test_it_is_said_what_is_wrong(
    words: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tandem", *words])
    with pytest.raises(SystemExit) as ended:
        main("tandem")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_watched_in_a_pipe_an_error_is_no_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reach, "sleep", interrupted)
    monkeypatch.setattr(sys, "argv", ["tandem", "jobs", "--json", "-w", "--server", NOWHERE])
    with pytest.raises(SystemExit) as ended:
        main("tandem")
    assert not ended.value.code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error: " in printed.err
