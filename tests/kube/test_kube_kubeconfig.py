"""Kubeconfig files mean what they mean to the official client, or to kubectl where they differ."""

from __future__ import annotations

import base64
import json
import os
import ssl
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml
from kubernetes import config as official
from kubernetes.client import ApiClient, Configuration
from web_servers import Serve, Web, web_servers

from scheduler_extender.admission.certificates import generate, generate_pair
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.kube.credentials import context_namespace
from tandem.kube.errors import KubeError
from tandem.kube.kubeconfig import Files, Kubeconfig
from tandem.kube.logins import _write

SERVER = "https://127.0.0.1:6443"
Document = dict[str, Any]


def document(
    user: Document | None = None, cluster: Document | None = None, **context: Any
) -> Document:
    """Return a kubeconfig with one context."""
    return {
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
        "current-context": "x",
        "users": [{"name": "u", "user": user or {}}],
    }


def written(folder: Path, said: Document, name: str = "config") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(said))
    return path


def program(folder: Path, status: Document, version: str = "v1") -> Document:
    """Return a login by a program, which counts its calls and keeps what it was asked."""
    path = folder / "login"
    answer = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "kind": "ExecCredential",
        "status": status,
    }
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, pathlib, sys\n"
        f"here = pathlib.Path({str(folder)!r})\n"
        "with (here / 'calls').open('a') as calls:\n"
        "    calls.write(' '.join([*sys.argv[1:], os.environ.get('REGION', '')]) + '\\n')\n"
        "(here / 'asked').write_text(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"print({json.dumps(answer)!r})\n"
    )
    path.chmod(0o755)
    return {
        "exec": {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": str(path),
            "args": ["--give"],
            "env": [{"name": "REGION", "value": "r1"}],
        }
    }


def in_an_hour(hours: float = 1) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def jwt(hours: float) -> str:
    end = (datetime.now(UTC) + timedelta(hours=hours)).timestamp()
    claims = base64.urlsafe_b64encode(json.dumps({"exp": int(end)}).encode()).decode()
    return f"e30.{claims.rstrip('=')}.c2ln"


def users(folder: Path) -> dict[str, Document]:
    """Return a user for each way to log in."""
    (folder / "token").write_text("from-a-file")
    gcp = {"name": "gcp", "config": {"access-token": "g", "expiry": in_an_hour()}}
    no_jwt = {"name": "oidc", "config": {"id-token": "no"}}
    fresh = {"name": "oidc", "config": {"id-token": jwt(1)}}
    return {
        "none": {},
        "token": {"token": "t"},
        "relative file": {"tokenFile": "token"},
        "absolute file": {"tokenFile": str(folder / "token")},
        "token before file": {"token": "t", "tokenFile": "token"},
        "program": program(folder, {"token": "p", "expirationTimestamp": in_an_hour()}),
        "token before program": {"token": "t", **program(folder, {"token": "p"})},
        "password": {"username": "a", "password": "b:c"},
        "token before password": {"token": "t", "username": "a", "password": "b"},
        "name without password": {"username": "a"},
        "gcp": {"auth-provider": gcp},
        "oidc": {"auth-provider": fresh},
        "no token of oidc": {"auth-provider": no_jwt, "token": "t"},
        "unknown provider": {"auth-provider": {"name": "azure", "config": {}}, "token": "t"},
    }  # fmt: skip


LOGINS = (
    "none", "token", "relative file", "absolute file", "token before file", "program",
    "token before program", "password", "token before password", "name without password", "gcp",
    "oidc", "no token of oidc", "unknown provider",
)  # fmt: skip


def theirs(path: Path, context: str | None = None) -> Configuration:
    found = Configuration()
    official.load_kube_config(str(path), context=context, client_configuration=found)
    return found


@pytest.mark.parametrize("name", LOGINS)
def test_a_user_logs_in_as_with_the_official_client(tmp_path: Path, name: str) -> None:
    known = users(tmp_path)
    assert known.keys() == set(LOGINS)
    path = written(tmp_path, document(known[name]))
    expected = theirs(path)
    header = expected.get_api_key_with_prefix("BearerToken", alias="authorization")
    ours = Kubeconfig(path, None)
    assert (ours.host, ours.authorization()) == (expected.host, header)


def test_a_program_is_asked_as_the_official_client_asks_it(tmp_path: Path) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    user = program(tmp_path, {"token": "p"})
    user["exec"]["provideClusterInfo"] = True
    path = written(tmp_path, document(user, {"extensions": [extension]}))
    asked = []
    for load in (lambda: Kubeconfig(path, None), lambda: theirs(path)):
        load()
        asked.append(json.loads((tmp_path / "asked").read_text()))
    assert asked[0] == asked[1]
    assert asked[0]["spec"]["cluster"]["config"] == {"audience": "a"}
    assert (tmp_path / "calls").read_text() == "--give r1\n--give r1\n"


def test_a_login_is_renewed_shortly_before_it_ends(tmp_path: Path) -> None:
    lasting = written(
        tmp_path, document(program(tmp_path, {"token": "p", "expirationTimestamp": in_an_hour()}))
    )
    ours = Kubeconfig(lasting, None)
    for _ in range(3):
        assert ours.authorization() == "Bearer p"
    assert (tmp_path / "calls").read_text().count("\n") == 1
    soon = program(tmp_path, {"token": "p", "expirationTimestamp": in_an_hour(0.01)})
    ours = Kubeconfig(written(tmp_path, document(soon)), None)
    ours.authorization()
    assert (tmp_path / "calls").read_text().count("\n") == 3


def test_a_file_with_a_token_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    ours = Kubeconfig(written(tmp_path, document({"tokenFile": "token"})), None)
    file.write_text("second\n")
    assert ours.authorization() == "Bearer first"
    monkeypatch.setattr("tandem.kube.kubeconfig.over", lambda _: True)
    assert ours.authorization() == "Bearer second"


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ({"exec": {"apiVersion": "v1", "command": "no-such-login"}}, "no-such-login cannot be run"),
        ({"exec": {"apiVersion": "v1", "command": "/bin/false"}}, "/bin/false fails"),
        ({"exec": {"apiVersion": "v1", "command": "/bin/true"}}, "prints no JSON"),
        ({"exec": {"command": "x"}}, "apiVersion"),
        ({"tokenFile": "absent"}, "absent"),
        ({"client-certificate": "absent"}, "absent"),
        ({"client-certificate-data": "bm90IGE="}, "credentials"),
        ({"auth-provider": {"name": "gcp", "config": {}}}, "no token that lasts"),
    ],
)
def test_a_login_that_fails_is_said_and_no_command_goes_on_without_one(
    tmp_path: Path, user: Document, says: str
) -> None:
    """The official client goes on as system:anonymous where a program fails."""
    with pytest.raises(TandemError, match=says):
        Kubeconfig(written(tmp_path, document(user)), None)


def test_the_hint_of_a_program_says_how_to_get_it(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "v1", "command": "no-such-login", "installHint": "Get it at X"}}
    with pytest.raises(TandemError) as caught:
        Kubeconfig(written(tmp_path, document(user)), None)
    assert caught.value.hint == "Get it at X"


@pytest.mark.parametrize(
    ("status", "fine"),
    [
        ({}, False),
        ({"clientCertificateData": "x"}, False),
        ({"token": "t"}, True),
    ],
)
def test_what_a_program_gives_is_a_login_or_an_error(
    tmp_path: Path, status: Document, fine: bool
) -> None:
    path = written(tmp_path, document(program(tmp_path, status)))
    if fine:
        assert Kubeconfig(path, None).authorization() == "Bearer t"
    else:
        with pytest.raises(TandemError, match="neither a token nor a certificate"):
            Kubeconfig(path, None)


@pytest.fixture
def web() -> Iterator[Serve]:
    with web_servers() as serve:
        yield serve


@pytest.fixture
def secure(web: Serve, tmp_path: Path) -> tuple[str, Any, Any]:
    """An API server that wants a client certificate, and the certificates of both sides."""
    server, client = generate_pair(
        ["127.0.0.1", "api.internal"], "alice", datetime.now(UTC), timedelta(days=1)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server.write(tmp_path / "server"))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=client.ca.decode())

    def answer(request: Web) -> None:
        shown = request.connection.getpeercert() or {}
        names = [value for each in shown.get("subject", ()) for _, value in each]
        request.says(200, {"caller": names, "said": request.headers["Authorization"]})

    return web(answer, context), server, client


def data(content: bytes) -> str:
    return base64.b64encode(content).decode()


def caller(path: Path) -> Document:
    return KubeClient.load(path).request("GET", "/whoami")


def test_a_client_certificate_is_shown_from_data_files_and_programs(
    tmp_path: Path, secure: tuple[str, Any, Any]
) -> None:
    address, server, client = secure
    client.write(tmp_path / "mine")
    (tmp_path / "ca.crt").write_bytes(server.ca)
    trusts = {"server": address, "certificate-authority-data": data(server.ca)}
    by_data = {
        "client-certificate-data": data(client.certificate),
        "client-key-data": data(client.key),
    }
    by_file = {"client-certificate": "mine/tls.crt", "client-key": "mine/tls.key"}
    by_program = program(
        tmp_path,
        {
            "clientCertificateData": client.certificate.decode(),
            "clientKeyData": client.key.decode(),
        },
    )
    for user, cluster in (
        (by_data, trusts),
        (by_file, {"server": address, "certificate-authority": "ca.crt"}),
        (by_program, trusts),
    ):
        path = written(tmp_path, document(user, cluster))
        assert caller(path) == {"caller": ["alice"], "said": None}
        assert ApiClient(theirs(path)).rest_client.request("GET", f"{address}/").status == 200
    outsider = written(tmp_path, document({"token": "t"}, trusts))
    assert caller(outsider) == {"caller": [], "said": "Bearer t"}
    assert not [each for each in tmp_path.rglob("*") if each.name.startswith("tmp")]


def test_an_authority_a_name_or_neither_is_checked(
    tmp_path: Path, secure: tuple[str, Any, Any]
) -> None:
    address, server, _ = secure
    stranger = generate(["127.0.0.1"], datetime.now(UTC))
    by_name = address.replace("127.0.0.1", "localhost")
    trusts = {"certificate-authority-data": data(server.ca)}
    cases = (
        ({"server": address}, False),  # by the authorities of this machine
        ({"server": address, **trusts}, True),
        ({"server": by_name, **trusts}, False),
        ({"server": by_name, **trusts, "tls-server-name": "api.internal"}, True),
        ({"server": by_name, "insecure-skip-tls-verify": True}, True),
        ({"server": address, "certificate-authority-data": data(stranger.ca)}, False),
    )  # fmt: skip
    for cluster, fine in cases:
        path = written(tmp_path, document({"token": "t"}, cluster))
        for reads in (
            lambda path=path: caller(path),
            lambda path=path, cluster=cluster: ApiClient(theirs(path)).rest_client.request(
                "GET", f"{cluster['server']}/"
            ),
        ):
            if fine:
                reads()
            else:
                with pytest.raises(Exception, match=r"(?i)certificate"):
                    reads()


def test_a_proxy_is_used_where_the_file_or_the_environment_says_so(
    tmp_path: Path, web: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(request: Web) -> None:
        asked.append((request.path, request.headers["Proxy-Authorization"]))
        request.says(200, {})

    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    proxy = web(answer)
    there = {"server": "http://cluster.example:8080"}
    via = "http://cluster.example:8080/whoami"

    def goes_through(cluster: Document) -> bool:
        asked.clear()
        try:
            caller(written(tmp_path, document({"token": "t"}, cluster)))
        except KubeError:
            return False
        return [path for path, _ in asked] == [via]

    assert goes_through({**there, "proxy-url": proxy})
    assert not goes_through(there)
    monkeypatch.setenv("http_proxy", proxy.replace("//", "//me:se%20cret@"))
    assert goes_through(there)
    assert asked[0][1] == "Basic " + data(b"me:se cret")
    for no_proxy, past in (
        ("cluster.example", True),
        (".example", True),
        ("other", False),
        ("*", True),
        ("cluster.example:8080", True),
    ):
        monkeypatch.setenv("no_proxy", no_proxy)
        assert goes_through(there) is not past, no_proxy
        assert goes_through({**there, "proxy-url": proxy}), "what the file says counts"
    monkeypatch.setenv("no_proxy", "10.0.0.0/8")
    ours = Kubeconfig(written(tmp_path, document({}, {"server": "http://10.1.2.3"})), None)
    assert ours.pool.proxy is None


def test_of_several_files_the_first_that_has_a_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = document({"token": "first"}, namespace="one")
    second = document({"token": "second"}, {"server": "https://second"}, namespace="two")
    second["users"].append({"name": "v", "user": {"tokenFile": "token"}})
    second["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "v"}})
    second["current-context"] = "y"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "token").write_text("of-the-same-folder")
    paths = [written(tmp_path, first), tmp_path / "absent", written(tmp_path / "other", second)]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, paths)))
    ours = Kubeconfig(None, None)
    # As kubectl; the official client takes the last file's current context.
    assert (ours.host, ours.authorization()) == (SERVER, "Bearer first")
    assert Files(None).names() == ["x", "y"]
    assert Kubeconfig(None, "y").authorization() == "Bearer of-the-same-folder"
    assert (context_namespace(), context_namespace(context="y")) == ("one", "default")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (document() | {"current-context": "other"}, "no context 'other', but x"),
        (document() | {"current-context": ""}, "no context is chosen"),
        (document() | {"clusters": []}, "no cluster 'c'"),
        (document(cluster={"server": "ftp://a"}), "no address of a server"),
        (document(cluster={"server": ""}), "no address of a server"),
        ({"clusters": [{"no": "name"}]}, "it has no 'name'"),
        ([], "is no kubeconfig file"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, said: Any, says: str) -> None:
    path = written(tmp_path, said)
    with pytest.raises(TandemError, match=says):
        Kubeconfig(path, None)


def test_a_user_that_is_not_there_is_anonymous(tmp_path: Path) -> None:
    said = document() | {"users": []}
    assert Kubeconfig(written(tmp_path, said), None).authorization() is None


def test_a_token_of_openid_connect_is_renewed_and_kept(tmp_path: Path, web: Serve) -> None:
    asked: list[Document] = []
    fresh = jwt(1)

    def answer(request: Web) -> None:
        if request.command == "GET":
            request.says(200, {"token_endpoint": f"{issuer}/token"})
            return
        content = request.content
        asked.append({key: value for key, (value,) in parse_qs(content.decode()).items()})
        asked[-1]["by"] = request.headers["Authorization"]
        request.says(200, {"id_token": fresh, "refresh_token": "second"})

    issuer = web(answer)
    config = {
        "client-id": "kubectl",
        "client-secret": "s",
        "id-token": jwt(-1),
        "idp-issuer-url": issuer,
        "refresh-token": "first",
    }
    said = document({"auth-provider": {"name": "oidc", "config": config}})
    other = {"name": "w", "user": {"auth-provider": {"name": "oidc", "config": dict(config)}}}
    said["users"].append(other)
    path = written(tmp_path, said)
    path.chmod(0o600)
    assert Kubeconfig(path, None).authorization() == f"Bearer {fresh}"
    by = "Basic " + data(b"kubectl:s")
    assert asked == [{"grant_type": "refresh_token", "refresh_token": "first", "by": by}]
    kept = yaml.safe_load(path.read_text())
    mine, others = (each["user"]["auth-provider"]["config"] for each in kept["users"])
    assert mine == config | {"id-token": fresh, "refresh-token": "second"}
    assert others == config, "another user's login is left alone"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Kubeconfig(path, None).authorization() == f"Bearer {fresh}"
    assert len(asked) == 1


def test_a_login_that_the_provider_does_not_renew_is_said(tmp_path: Path, web: Serve) -> None:
    def answer(request: Web) -> None:
        if request.command == "GET":
            request.says(200, {"token_endpoint": f"{issuer}/token"})
            return
        request.says(400, {"error": "invalid_grant"})

    issuer = web(answer)
    config = {
        "client-id": "k", "id-token": jwt(-1), "idp-issuer-url": issuer, "refresh-token": "old",
    }  # fmt: skip
    path = written(tmp_path, document({"auth-provider": {"name": "oidc", "config": config}}))
    with pytest.raises(TandemError, match="does not renew your login"):
        Kubeconfig(path, None)


def test_the_program_of_gcp_is_run_where_its_token_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "gcloud"
    answer = {"credential": {"access_token": "new", "token_expiry": in_an_hour()}}
    path.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    path.chmod(0o755)
    config = {
        "access-token": "old",
        "expiry": in_an_hour(-1),
        "cmd-path": str(path),
        "cmd-args": "x",
    }
    said = document({"auth-provider": {"name": "gcp", "config": config}})
    assert Kubeconfig(written(tmp_path, said), None).authorization() == "Bearer new"


def test_no_message_has_what_is_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "clusters: []\nusers:\n- name: u\n  user:\n    "
    for line in (
        "token: s3cret: more",
        "token: 's3cret",
        "password: *s3cret",
        "token: s3cret\t: x",
    ):
        path = tmp_path / "broken"
        path.write_text(head + line)
        with pytest.raises(TandemError, match=r"is no YAML in line [56]") as caught:
            Kubeconfig(path, None)
        assert "s3cret" not in caught.value.message
    for token in ("s3cret\nX-More: 1", "s3cret\u2026", "s3\x00cret"):
        with pytest.raises(TandemError, match="characters that a token cannot have") as caught:
            Kubeconfig(written(tmp_path, document({"token": token})), None)
        assert "s3" not in caught.value.message
    monkeypatch.setitem(sys.modules, "urllib3.contrib.socks", None)  # as without PySocks
    for scheme in ("socks", "socks5", "ftp"):
        proxy = {"proxy-url": f"{scheme}://me:s3cret@127.0.0.1:1"}
        with pytest.raises(TandemError, match="proxy") as caught:
            Kubeconfig(written(tmp_path, document({}, proxy)), None)
        assert "s3cret" not in caught.value.message


def test_a_line_at_the_end_of_a_token_is_none_of_it(tmp_path: Path) -> None:
    path = written(tmp_path, document({"token": "t\n"}))
    assert Kubeconfig(path, None).authorization() == "Bearer t"


@pytest.mark.parametrize("word", ["false", "no", "yes", 0.5, []])
def test_only_the_word_true_leaves_certificates_unchecked(tmp_path: Path, word: Any) -> None:
    """As kubectl, which takes no text for it."""
    path = written(tmp_path, document({}, {"insecure-skip-tls-verify": word}))
    with pytest.raises(TandemError, match="neither true nor false"):
        Kubeconfig(path, None)


def test_no_login_goes_to_a_server_that_others_on_the_way_may_read(tmp_path: Path) -> None:
    """As kubectl."""
    for user in ({"token": "t"}, program(tmp_path, {"token": "p"})):
        remote = written(tmp_path, document(user, {"server": "http://cluster.example:8080"}))
        assert Kubeconfig(remote, None).authorization() is None
    assert not (tmp_path / "calls").exists()
    here = written(tmp_path, document({"token": "t"}, {"server": "http://127.0.0.1:8001"}))
    assert Kubeconfig(here, None).authorization() == "Bearer t"


def test_an_empty_file_among_others_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").touch()
    path = written(tmp_path, document({"token": "t"}))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'empty'}:{path}")
    assert Kubeconfig(None, None).authorization() == "Bearer t"


def test_a_program_is_not_run_for_each_request_where_its_tokens_last_for_minutes(
    tmp_path: Path,
) -> None:
    five = program(tmp_path, {"token": "p", "expirationTimestamp": in_an_hour(5 / 60)})
    ours = Kubeconfig(written(tmp_path, document(five)), None)
    for _ in range(3):
        ours.authorization()
    assert (tmp_path / "calls").read_text().count("\n") == 1


def test_a_certificate_that_a_program_renews_is_shown(
    tmp_path: Path, secure: tuple[str, Any, Any]
) -> None:
    address, server, client = secure
    other = generate_pair(["x"], "bob", datetime.now(UTC), timedelta(days=1))[1]
    trusts = {"server": address, "certificate-authority-data": data(server.ca)}

    def gives(shown: Any, hours: float) -> Document:
        return program(
            tmp_path,
            {
                "clientCertificateData": shown.certificate.decode(),
                "clientKeyData": shown.key.decode(),
                "expirationTimestamp": in_an_hour(hours),
            },
        )

    ours = KubeClient.load(written(tmp_path, document(gives(other, 0.01), trusts)))
    gives(client, 1)
    assert ours.request("GET", "/whoami") == {"caller": ["alice"], "said": None}


def test_a_login_that_cannot_be_renewed_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    ours = Kubeconfig(written(tmp_path, document({"tokenFile": "token"})), None)
    monkeypatch.setattr("tandem.kube.kubeconfig.over", lambda _: True)
    file.unlink()
    with pytest.raises(TandemError, match="No such file"):
        ours.authorization()


def test_a_server_on_this_machine_is_reached_without_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubectl: clusters of kind and minikube are here."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    for server in (SERVER, "https://localhost:6443", "https://[::1]:6443"):
        path = written(tmp_path, document({}, {"server": server}))
        assert Kubeconfig(path, None).pool.proxy is None, server
    monkeypatch.setenv("https_proxy", "me:word@proxy.example:3128")  # as kubectl: by HTTP
    away = written(tmp_path, document({}, {"server": "https://10.1.2.3"}))
    proxy = Kubeconfig(away, None).pool.proxy
    assert proxy is not None
    assert (proxy.scheme, proxy.host, proxy.port) == ("http", "proxy.example", 3128)


def test_a_kubeconfig_that_is_a_link_stays_one(tmp_path: Path) -> None:
    config = {"id-token": jwt(1), "refresh-token": "r"}
    said = document({"auth-provider": {"name": "oidc", "config": config}})
    (tmp_path / "real").mkdir()
    real, link = written(tmp_path / "real", said), tmp_path / "link"
    link.symlink_to(real)
    files = Files(link)
    _write(files.user(files.context()), {"id-token": "new"})
    assert link.is_symlink()
    assert "id-token: new" in real.read_text()
