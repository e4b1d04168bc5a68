"""Names of the cluster complete in a shell, by the protocols of bash and zsh.

The program is the installed one, the shell's function is the one that the program gives out, and
the API server is one of this process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tandem.contracts import names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = Path(sys.executable).with_name("tandem")
OURS = f"/apis/{names.API_VERSION}"
LISTS = {
    f"{OURS}/namespaces/team-a/gpujobs": ["job-bert", "job-resnet"],
    f"{OURS}/namespaces/team-b/gpujobs": ["job-gpt"],
    f"{OURS}/gpunodes": ["gpu-0", "gpu-1"],
}
#: What is typed, and what it may become.
CASES = [
    (["tandem", "why", "job-"], ["job-bert", "job-resnet"]),
    (["tandem", "why", "team-b/"], ["team-b/job-gpt"]),
    (["tandem", "gpus", "--node", "gpu-1"], ["gpu-1"]),
    (["tandem", "top", "--context", "x"], ["x"]),
    (["tandem", "why", "nothing-like-that"], []),
]


class Api(BaseHTTPRequestHandler):
    """Lists what `LISTS` has, to who bears the token."""

    def do_GET(self) -> None:
        known = LISTS.get(self.path.partition("?")[0])
        allowed = self.headers["Authorization"] == "Bearer t"
        items = [{"metadata": {"name": name}} for name in known or ()]
        content = json.dumps({"items": items}).encode()
        self.send_response(200 if allowed and known is not None else 403)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user whose kubeconfig names the API server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = tmp_path_factory.mktemp("completion") / "kubeconfig"
    cluster = {"server": f"http://127.0.0.1:{server.server_port}"}
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": cluster}],
                "contexts": [{"name": "x", "context": context}],
                "current-context": "x",
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    folders = f"{PROGRAM.parent}:{os.environ['PATH']}"
    yield {"PATH": folders, "HOME": str(path.parent), "KUBECONFIG": str(path), "NO_PROXY": "*"}
    server.shutdown()
    server.server_close()


def shell(environment: dict[str, str], script: str) -> str:
    """Return what a script of bash prints."""
    answer = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "", "a shell that completes has no place for messages"
    return answer.stdout


def test_bash_completes_by_the_function_that_the_program_gives_out(
    environment: dict[str, str],
) -> None:
    """The shell sets COMP_WORDS and COMP_CWORD, and takes COMPREPLY."""
    script = ['eval "$(_TANDEM_COMPLETE=source_bash tandem)"']
    script.append("complete -p tandem >/dev/null 2>&1 || exit 9")
    for words, _ in CASES:
        typed = " ".join(f"'{word}'" for word in words)
        script.append(
            f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; COMPREPLY=()\n"
            '_tandem_completion tandem "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"\n'
            'echo "${COMPREPLY[*]}"'
        )
    printed = shell(environment, "\n".join(script)).splitlines()
    assert [line.split() for line in printed] == [found for _, found in CASES]


def test_zsh_completes_by_the_function_that_the_program_gives_out(
    environment: dict[str, str],
) -> None:
    """The shell sets `words` and CURRENT; the function evaluates a call of `_arguments`.

    Here, bash runs the function's body: only the slice of `words` is zsh's own.
    """
    source = shell(environment, "_TANDEM_COMPLETE=source_zsh tandem")
    (body,) = re.findall(r"_tandem_completion\(\) \{\n(.*?)\n\}", source, re.DOTALL)
    assert '"${words[1,$CURRENT]}"' in body
    body = body.replace('"${words[1,$CURRENT]}"', '"$typed"')
    script = ["_arguments() { printf '%s' \"$*\"; }", "_files() { printf files; }"]
    script += [f"typed='{' '.join(words)}'\n{body}\necho" for words, _ in CASES]
    printed = shell(environment, "\n".join(script)).splitlines()
    for line, (words, found) in zip(printed, CASES, strict=True):
        if not found:
            assert line == "files", words
            continue
        (listed,) = re.fullmatch(r"\*: :\(\((.*)\)\)", line).groups()
        assert re.findall(r'"([^"]+)"(?::"[^"]*")?', listed) == found, words


def test_a_cluster_that_is_away_completes_nothing_and_prints_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    away = tmp_path / "kubeconfig"
    text = Path(environment["KUBECONFIG"]).read_text()
    away.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", text))
    asked = "COMP_WORDS=$'tandem\\nwhy\\njob-' COMP_CWORD=2 _TANDEM_COMPLETE=complete_bash tandem"
    assert shell(environment | {"KUBECONFIG": str(away)}, asked).strip() == ""
    assert shell(environment, asked).split() == ["job-bert", "job-resnet"]
