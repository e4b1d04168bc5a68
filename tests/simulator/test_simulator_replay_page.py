"""docs/replay.md, followed literally."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tandem.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()


def blocks() -> list[str]:
    """The indented blocks of the page."""
    found = re.findall(r"(?:^    .*\n)+", PAGE, flags=re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


def explained() -> set[str]:
    """The figures that the page explains."""
    return set(re.findall(r"`(\w+)`", PAGE.split("\n## 4.")[1].split("\n\n")[1]))


def elastic_rows() -> str:
    """The trace of elastic jobs."""
    (found,) = (block for block in blocks() if "min_gpus" in block)
    return found


def test_the_elastic_jobs_of_the_page_have_all_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(elastic_rows())
    words = "tandem simulate --strict --trace jobs.csv --cluster 1x4:V100 --json out.json"
    monkeypatch.setattr(sys, "argv", words.split())
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    (figures,) = json.loads(Path("out.json").read_text())["profiles"].values()
    assert set(figures) - {"jobs"} == explained()
    assert figures["avg_jct_s"] == pytest.approx(86_400 * 60 / 36)


@pytest.mark.long
def test_the_commands_of_the_page_give_the_figures_that_it_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, *commands = [block for block in blocks() if block != elastic_rows()]
    assert rows.startswith("job_id,")
    assert len(commands) == 3
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(rows)
    # The file of pairs is the user's own: here, the page's example with numbers in it.
    pairs = {"model a": {"null": 10.0, "model a": [6.0, 6.0], "model b": [8.0, 4.0]},
             "model b": {"null": 5.0, "model a": [4.0, 8.0], "model b": [0, 0]}}  # fmt: skip
    assert '{"v100": {"model a": {"null": solo, "model b": [a\'s, b\'s]}}}' in PAGE
    Path("throughputs.json").write_text(json.dumps({"v100": pairs}))
    for number, command in enumerate(commands):
        words = shlex.split(command.replace("\\\n", " "))
        if "--json" not in words:
            words += ["--json", "out.json"]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, command
        profiles = json.loads(Path("out.json").read_text())["profiles"]
        assert len(profiles) == 3, number
        for figures in profiles.values():
            assert figures["jobs"] == 2
            assert set(figures) - {"jobs"} == explained() - {"resizes", "shrinks"}
    assert {p.name for p in Path("plots").iterdir()} >= {"table.svg", "completion_times.svg"}


def test_the_settings_of_the_page_are_those_of_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(blocks()[0])
    settings = re.findall(r"`(--set [^`]+)`", PAGE)
    assert len(settings) == 2
    for setting in settings:
        words = ["tandem", "simulate", "--trace", "jobs.csv", "--cluster", "8x8:V100"]
        monkeypatch.setattr(sys, "argv", [*words, "--profile", "tandem", *setting.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
