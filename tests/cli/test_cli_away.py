"""Commands that write to a cluster, where its API server does not answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tandem.cli.main import main


@pytest.mark.parametrize(
    "command",
    [("hold", "a/b"), ("resume", "a/b"), ("prioritize", "a/b"), ("train", "--from-cluster")],
)
def test_a_command_says_in_words_that_the_api_server_is_away(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    config = tmp_path / "kubeconfig"
    named = {"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "x", "context": {"cluster": "x", "user": ""}}
    whole = {"clusters": [named], "contexts": [context], "current-context": "x", "users": []}
    config.write_text(json.dumps(whole))
    words = ["tandem", *command, "--kubeconfig", str(config)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "the API server refuses, or does not answer" in " ".join(said.split())
    assert "Traceback" not in said
    assert "`tandem doctor` says what is wrong" in said, "as of the commands that read"


def test_a_context_that_does_not_exist_is_said_with_how_to_name_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kubeconfig"
    context = {"name": "x", "context": {"cluster": "x", "user": ""}}
    config.write_text(json.dumps({"contexts": [context], "current-context": "x"}))
    words = ["tandem", "jobs", "--kubeconfig", str(config), "--context", "nope"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "has no context 'nope', but x" in said
    assert "--context" in said
