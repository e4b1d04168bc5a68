"""Reads kubeconfig files: the server, its certificates, and how to log in there.

Files and fields mean what they mean to kubectl: $KUBECONFIG may name several files, the first that
has a name wins, and a path is relative to the file that names it. Logins: a token, a file with one,
a client certificate, a program (`exec`), OpenID Connect, a password, and the program of the old
provider `gcp`.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from binascii import Error as NoBase64Error
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

import urllib3
import yaml

from tandem.errors import TandemError
from tandem.kube.entries import Entry
from tandem.kube.logins import EARLY, Login, by_gcp, by_oidc, by_program, over
from tandem.kube.secrecy import stays_secret

_DEFAULT = "~/.kube/config"
_LISTS = ("clusters", "contexts", "users")
_PROXIES = ("http", "https", "socks4", "socks4a", "socks5", "socks5h")


class NoContextError(LookupError):
    """Of the contexts that there are, none has that name, or none is chosen."""


class Files:
    """The files of a kubeconfig, merged.

    Raises:
        OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError: they are none.
    """

    def __init__(self, path: Path | None) -> None:
        named = str(path) if path else os.environ.get("KUBECONFIG") or _DEFAULT
        self._named = named
        self._entries: dict[str, dict[str, Entry]] = {each: {} for each in _LISTS}
        self.current = ""
        files = [Path(each).expanduser() for each in named.split(os.pathsep) if each]
        there = [each for each in files if each.exists()]
        if not there:
            raise ValueError(f"there is no file {named}")
        for file in there:
            self._merge(file.absolute())

    def _merge(self, file: Path) -> None:
        said = _read(file)
        if said is None:  # empty, as kubectl makes one
            return
        if not isinstance(said, dict):
            raise ValueError(f"{file} is no kubeconfig file")
        self.current = self.current or str(said.get("current-context") or "")
        for kind, known in self._entries.items():
            for each in said.get(kind) or ():
                entry = Entry(each["name"], each[kind.removesuffix("s")] or {}, file)
                known.setdefault(entry.name, entry)

    def context(self, name: str | None = None) -> Entry:
        """Return a context, by default the current one."""
        wanted = name or self.current
        try:
            if not wanted:
                raise LookupError(f"no context is chosen in {self._named}")
            return self._get("contexts", wanted)
        except LookupError as error:
            if not self._entries["contexts"]:
                raise
            raise NoContextError(*error.args) from error

    def cluster(self, context: Entry) -> Entry:
        """Return the cluster of a context."""
        return self._get("clusters", context.said["cluster"])

    def user(self, context: Entry) -> Entry:
        """Return the user of a context; one of nothing, where it has none or an unknown one."""
        return self._entries["users"].get(str(context.said.get("user") or ""), Entry())

    def _get(self, kind: str, name: str) -> Entry:
        known = self._entries[kind]
        if name not in known:
            others = ", ".join(map(str, known)) or "none"
            raise LookupError(
                f"{self._named} has no {kind.removesuffix('s')} {name!r}, but {others}"
            )
        return known[name]

    def names(self) -> list[str]:
        """Return the names of the contexts, in the order of the files."""
        return list(self._entries["contexts"])


def _read(file: Path) -> object:
    """Return what a file says. An error of YAML quotes the line, which may be that of a token."""
    try:
        return yaml.safe_load(file.read_text("utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{file} is no YAML{where}") from None


class Kubeconfig:
    """A server and a login there, as a kubeconfig file says; a login that ends is renewed.

    Raises:
        TandemError: they cannot be used.
    """

    def __init__(self, path: Path | None, context: str | None, pool_size: int = 1) -> None:
        self._pool_size = pool_size
        try:
            files = Files(path)
            chosen = files.context(context)
            self.cluster, self._user = files.cluster(chosen), files.user(chosen)
            self.host = str(self.cluster.said["server"]).rstrip("/")
            parts = urlsplit(self.host)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{self.host!r} is no address of a server")
            self._login = self._logged_in()
            self.pool = self._connections(pool_size)
        except UNUSABLE as error:
            raise _unusable(error) from error

    def authorization(self) -> str | None:
        """Return the header `Authorization`, of a login that lasts for a while yet.

        Raises:
            TandemError: the login has ended and cannot be renewed.
        """
        ends = self._login.ends
        if ends is not None and over(ends):
            try:
                self._renew()
            except UNUSABLE as error:
                raise _unusable(error) from error
        return self._login.header

    def _renew(self) -> None:
        before, self._login = self._login, self._logged_in()
        if self._login.certificate != before.certificate:
            self.pool = self._connections(self._pool_size)

    def _logged_in(self) -> Login:
        """Return the first login that the user has; none for a server that reads no secrets."""
        if not stays_secret(self.host):
            return Login()  # as kubectl: others on the way would read it
        user = self._user.said
        if found := self._by_provider(user.get("auth-provider") or {}):
            return found
        if user.get("token"):
            return Login.of_token(user["token"])
        if user.get("tokenFile"):
            # Nothing says when the file is rotated: it is read again after a minute.
            again = datetime.now(UTC) + EARLY + timedelta(minutes=1)
            return Login.of_token(self._user.path(user["tokenFile"]).read_text().strip(), again)
        if user.get("exec"):
            return by_program(user["exec"], self._user.file.parent, self.cluster.said)
        if "username" in user and "password" in user:
            basic = f"{user['username']}:{user['password']}"
            return Login(urllib3.util.make_headers(basic_auth=basic)["authorization"])
        return Login()

    def _by_provider(self, provider: Mapping[str, Any]) -> Login | None:
        known: dict[str, Callable[[Entry], Login | None]] = {"gcp": by_gcp, "oidc": by_oidc}
        method = known.get(str(provider.get("name")))
        return method(self._user) if method else None

    def _connections(self, size: int) -> urllib3.PoolManager:
        settings: dict[str, Any] = {"maxsize": size, "retries": False}
        if urlsplit(self.host).scheme == "https":
            settings["ssl_context"] = self._tls()
            if name := self.cluster.said.get("tls-server-name"):
                settings["server_hostname"] = name
        proxy = self.cluster.said.get("proxy-url") or _environment_proxy(self.host)
        return through(proxy, settings) if proxy else urllib3.PoolManager(**settings)

    def _tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # As kubectl: an authority that another one has signed is enough.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        authority = self.cluster.content("certificate-authority")
        if authority is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=authority.decode())
        unchecked = self.cluster.said.get("insecure-skip-tls-verify")
        if unchecked not in (None, False, True):
            raise ValueError("insecure-skip-tls-verify is neither true nor false")
        if unchecked:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = self._login.certificate, self._login.key
        if certificate is None:
            certificate = self._user.content("client-certificate")
            key = self._user.content("client-key")
        if certificate is not None:
            _present(context, certificate, key)
        return context


#: What reading files raises that hold something else than they should.
UNUSABLE = (
    *(OSError, yaml.YAMLError, NoBase64Error, urllib3.exceptions.HTTPError),
    *(TypeError, ValueError, LookupError, AttributeError),
)


def _unusable(error: Exception) -> TandemError:
    said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    hint = "Give a kubeconfig file, or set KUBECONFIG."
    if isinstance(error, NoContextError):
        hint = "Name one with --context, or choose one: kubectl config use-context NAME."
    return TandemError(f"no usable Kubernetes credentials: {said}", hint)


def _present(context: ssl.SSLContext, certificate: bytes, key: bytes | None) -> None:
    """Have a client certificate presented. OpenSSL reads files alone: they last for a moment."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + (key or b""))
        file.flush()
        context.load_cert_chain(file.name)


def through(proxy: str, settings: Mapping[str, Any]) -> urllib3.PoolManager:
    """Return connections through a proxy.

    Raises:
        TandemError: it is a SOCKS proxy, for which a package is missing.
        ValueError: it is no address of a proxy.
    """
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme not in _PROXIES:
        raise ValueError(f"a proxy by {parts.scheme} is not supported; {', '.join(_PROXIES)} are")
    user, found, place = parts.netloc.rpartition("@")
    address = parts._replace(netloc=place).geturl()
    if parts.scheme.startswith("socks"):
        try:
            from urllib3.contrib.socks import SOCKSProxyManager
        except ImportError as error:
            raise TandemError(
                f"the proxy {address} needs the package PySocks", "pip install PySocks"
            ) from error
        return SOCKSProxyManager(proxy, **settings)
    headers = urllib3.util.make_headers(proxy_basic_auth=unquote(user)) if found else None
    return urllib3.ProxyManager(address, proxy_headers=headers, **settings)


def _environment_proxy(host: str) -> str | None:
    """Return the proxy that the environment names for a server, as kubectl reads it."""
    proxies = getproxies()
    parts = urlsplit(host)
    name = parts.hostname or ""
    if _is_here(name) or _goes_past(name, parts.netloc, proxies.get("no", "")):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")


def _is_here(host: str) -> bool:
    """Say whether a host is this machine, which no proxy reaches."""
    return host == "localhost" or any(_in_network(host, own) for own in ("127.0.0.0/8", "::1"))


def _goes_past(host: str, with_port: str, no_proxy: str) -> bool:
    for entry in filter(None, (each.strip().lower() for each in no_proxy.split(","))):
        if entry == "*" or _in_network(host, entry):
            return True
        name = entry.lstrip(".")
        if any(each == name or each.endswith(f".{name}") for each in (host, with_port)):
            return True
    return False


def _in_network(host: str, entry: str) -> bool:
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False
