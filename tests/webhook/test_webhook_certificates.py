"""One certificate for all replicas."""

import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest

from scheduler_extender.certificates import SECRET_NAME, VALID_FOR, ensure_certificate, generate
from tandem.errors import TandemError
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import SECRETS

NAMES = ("tandem-webhook.tandem-system.svc", "127.0.0.1")
NOW = datetime.now(UTC)


def test_the_first_makes_it_and_all_others_serve_it():
    cluster = MemoryCluster()
    first = ensure_certificate(cluster, "tandem-system", NAMES, NOW)
    assert ensure_certificate(cluster, "tandem-system", NAMES, NOW) == first


def test_replicas_that_start_together_agree():
    """Both look before either creates; the one whose creation fails takes the other's."""
    cluster = MemoryCluster()
    look, looked = cluster.get, threading.Barrier(2, timeout=30)
    waits = threading.local()

    def look_together(*args):
        try:
            return look(*args)
        finally:
            if not getattr(waits, "over", False):
                waits.over = True
                looked.wait()

    cluster.get = look_together
    found = []

    def replica():
        found.append(ensure_certificate(cluster, "tandem-system", NAMES, NOW))

    other = threading.Thread(target=replica)
    other.start()
    replica()
    other.join(30)
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "trusted"), [(NAMES[0], True), ("elsewhere", False)])
def test_an_api_server_that_knows_the_authority_trusts_it(tmp_path, name, trusted):
    serving = generate(NAMES, NOW)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*serving.write(tmp_path))
    client = ssl.create_default_context(cadata=serving.ca.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=name)
    theirs = server.wrap_bio(up, down, server_side=True)
    errors = []
    for side in (ours, theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            errors.append(error.verify_message)
            break
    assert bool(errors) is not trusted, errors


@pytest.mark.parametrize("data", [{}, {"ca.crt": "!", "tls.crt": "!", "tls.key": "!"}])
def test_a_secret_that_holds_none_is_named(data):
    cluster = MemoryCluster()
    cluster.create(SECRETS, {"metadata": {"name": SECRET_NAME}, "data": data}, "tandem-system")
    with pytest.raises(TandemError, match=f"tandem-system/{SECRET_NAME}") as caught:
        ensure_certificate(cluster, "tandem-system", NAMES, NOW)
    assert "Delete the Secret" in caught.value.hint


def test_an_expired_one_is_told():
    cluster = MemoryCluster()
    ensure_certificate(cluster, "tandem-system", NAMES, NOW)
    with pytest.raises(TandemError, match="expired"):
        ensure_certificate(cluster, "tandem-system", NAMES, NOW + VALID_FOR + timedelta(days=1))


def test_one_for_other_names_is_told():
    cluster = MemoryCluster()
    ensure_certificate(cluster, "tandem-system", NAMES, NOW)
    with pytest.raises(TandemError, match=r"not for elsewhere, 127\.0\.0\.2"):
        ensure_certificate(cluster, "tandem-system", [NAMES[0], "elsewhere", "127.0.0.2"], NOW)


def test_the_key_is_readable_by_us_alone(tmp_path):
    certificate, key = generate(NAMES, NOW).write(tmp_path / "tls")
    assert key.stat().st_mode & 0o777 == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
