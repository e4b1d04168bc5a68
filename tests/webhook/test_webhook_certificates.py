"""One certificate for all replicas, replaced in time without a moment in which it is refused."""

import contextlib
import ssl
import threading
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from scheduler_extender.admission.certificates import (
    CONFIGURATION_NAME,
    SECRET_NAME,
    ends,
    generate,
    not_for,
    trusted_authorities,
)
from scheduler_extender.admission.config import Rotation
from scheduler_extender.admission.rotation import Keeper
from scheduler_extender.serving.tls import Tls
from tandem.errors import TandemError
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import MUTATING_WEBHOOKS, SECRETS

NAMES = ("tandem-webhook.tandem-system.svc", "127.0.0.1")
NOW = datetime.now(UTC)
SETTINGS = Rotation()


def keeper(cluster, names=NAMES, clock=lambda: NOW):
    return Keeper(cluster, "tandem-system", names, SETTINGS, clock)


def test_the_first_makes_it_and_all_others_serve_it():
    cluster = MemoryCluster()
    first = keeper(cluster).begin()
    assert keeper(cluster).begin() == first


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
        found.append(keeper(cluster).begin())

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
        keeper(cluster).begin()
    assert "Delete the Secret" in caught.value.hint


# --- rotation ---------------------------------------------------------------------------------


class Api(MemoryCluster):
    """Knows the JSON patches by which the authority is installed, too."""

    def patch(self, resource, name, body, namespace=None, *, kind="merge", **more):
        if kind != "json":
            return super().patch(resource, name, body, namespace, kind=kind, **more)
        found = self.get(resource, name, namespace)
        for step in body:
            *path, last = step["path"].strip("/").split("/")
            place = found
            for part in path:
                place = place[int(part) if isinstance(place, list) else part]
            if step["op"] == "test":
                assert place[last] == step["value"]
            else:
                place[last] = step["value"]
        return self.replace(resource, found, namespace)


class World:
    """Replicas at one API server, and a caller that trusts what the API server trusts."""

    def __init__(self, replicas=2):
        self.now = NOW
        self.cluster = Api()
        webhooks = [{"name": name, "clientConfig": {}} for name in ("a", "b")]
        self.cluster.create(
            MUTATING_WEBHOOKS, {"metadata": {"name": CONFIGURATION_NAME}, "webhooks": webhooks}
        )
        self.replicas = [self.replica() for _ in range(replicas)]
        self.served = [replica.begin() for replica in self.replicas]
        self.look()

    def replica(self, names=NAMES):
        return keeper(self.cluster, names, lambda: self.now)

    def look(self):
        """Each replica looks; after each look everything that is served must be trusted."""
        for index, replica in enumerate(self.replicas):
            self.served[index] = replica.look()
            self.check()

    def check(self):
        for serving in self.served:
            vouching = [
                authority
                for authority in x509.load_pem_x509_certificates(self.trusted())
                if vouches(authority, x509.load_pem_x509_certificate(serving.certificate))
            ]
            assert vouching, "what is served is trusted"

    def trusted(self):
        return trusted_authorities(self.cluster)

    def pass_time(self, **amount):
        self.now += timedelta(**amount)
        self.look()


def vouches(authority, certificate):
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def authorities(world):
    return len(x509.load_pem_x509_certificates(world.trusted()))


def test_nothing_changes_while_there_is_time():
    world = World()
    before = world.served[:]
    for _ in range(100):
        world.pass_time(hours=12)
    assert world.served == before
    assert authorities(world) == 1


def test_it_is_replaced_in_time_by_all_replicas_and_the_old_authority_is_dropped():
    world = World(replicas=3)
    old, seen = world.served[0], []
    world.now = NOW + timedelta(days=SETTINGS.valid_days - SETTINGS.renew_days, seconds=-1)
    world.look()
    for _ in range(40):
        world.pass_time(seconds=SETTINGS.look_s)
        seen.append((authorities(world), len({one.certificate for one in world.served})))
    assert seen[0] == (2, 1), "trusted first"
    assert seen[-1] == (1, 1), "and in the end alone"
    assert {one.certificate for one in world.served} != {old.certificate}
    assert [count for count, _ in seen].count(2) >= 2 * SETTINGS.overlap_s / SETTINGS.look_s
    assert ends(world.served[0].certificate) > world.now + timedelta(days=300)


def test_a_replica_that_looks_late_is_trusted_all_the_same():
    """Replicas look at times of their own; one of them as late as it may."""
    random = Random(7)
    world = World(replicas=3)
    world.now = NOW + timedelta(days=SETTINGS.valid_days - SETTINGS.renew_days)
    due = [random.uniform(0, SETTINGS.look_s) for _ in world.replicas]
    for second in range(0, 1200, 5):
        world.now += timedelta(seconds=5)
        for index, replica in enumerate(world.replicas):
            if due[index] <= second:
                due[index] += SETTINGS.look_s
                world.served[index] = replica.look()
                world.check()
    assert authorities(world) == 1
    assert len({one.certificate for one in world.served}) == 1


def test_two_that_take_a_step_together_agree():
    world = World()
    world.now = NOW + timedelta(days=SETTINGS.valid_days)
    one, other = world.replicas
    replace_secret = world.cluster.replace

    def other_first(*args, **kwargs):
        world.cluster.replace = replace_secret
        world.served[1] = other.look()
        return replace_secret(*args, **kwargs)

    world.cluster.replace = other_first
    world.served[0] = one.look()
    assert world.served[0] == world.served[1]
    world.check()


def test_a_secret_that_was_deleted_comes_back_and_its_certificate_is_replaced_without_a_gap():
    world = World()
    old = world.served[0].certificate
    world.cluster.delete(SECRETS, SECRET_NAME, "tandem-system")
    for _ in range(20):
        world.pass_time(seconds=SETTINGS.look_s)
    assert old not in {one.certificate for one in world.served}
    assert authorities(world) == 1


def test_a_secret_that_does_not_stay_is_said_and_not_made_for_ever():
    cluster = MemoryCluster()
    create, made = cluster.create, []

    def vanish(*args):
        made.append(create(*args))
        cluster.delete(SECRETS, SECRET_NAME, "tandem-system")

    cluster.create = vanish
    with pytest.raises(TandemError, match="cannot be read back") as refused:
        keeper(cluster).begin()
    assert "get secret" in str(refused.value.hint)
    assert len(made) < 10


def test_a_replica_that_begins_without_a_secret_leaves_the_others_trusted():
    world = World()
    world.cluster.delete(SECRETS, SECRET_NAME, "tandem-system")
    world.replicas.append(world.replica())
    world.served.append(world.replicas[-1].begin())
    world.served[-1] = world.replicas[-1].look()
    world.check()
    world.look()


def test_one_that_has_ended_while_no_replica_ran_is_replaced_at_once():
    world = World()
    world.now += timedelta(days=SETTINGS.valid_days + 1)
    world.replicas = [world.replica()]
    world.served = [world.replicas[0].begin()]
    assert ends(world.served[0].certificate) > world.now
    world.look()


def test_one_for_other_names_is_replaced_at_once_and_stays_trusted_elsewhere():
    world = World()
    names = (NAMES[0], "elsewhere", "127.0.0.2")
    world.replicas.append(world.replica(names))
    world.served.append(world.replicas[-1].begin())
    assert not not_for(world.served[-1].certificate, names)
    world.served[-1] = world.replicas[-1].look()
    world.check()


def test_a_certificate_of_an_earlier_version_is_served_and_replaced_like_any():
    world = World()
    secret = world.cluster.get(SECRETS, SECRET_NAME, "tandem-system")
    secret["metadata"]["annotations"] = {}
    world.cluster.replace(SECRETS, secret, "tandem-system")
    before = world.served[0]
    world.look()
    assert world.served[0] == before


# --- the port ---------------------------------------------------------------------------------


def test_a_port_changes_its_certificate_and_open_connections_go_on():
    first, second = generate(NAMES, NOW), generate(NAMES, NOW)
    changes = []
    tls = Tls(on_change=changes.append)
    tls.use(first)
    old = Talk(tls.context, first.ca)
    tls.use(second)
    assert Talk(tls.context, second.ca).say(b"hello") == b"hello"
    assert old.say(b"still here") == b"still here"
    with pytest.raises(ssl.SSLCertVerificationError):
        Talk(tls.context, first.ca)
    tls.use(second)
    assert len(changes) == 2


def test_a_pair_that_does_not_fit_is_refused_and_the_one_before_goes_on():
    first, second = generate(NAMES, NOW), generate(NAMES, NOW)
    tls = Tls()
    tls.use(first)
    with pytest.raises(TandemError, match="cannot be served"):
        tls.use(replace(second, key=first.key))
    assert Talk(tls.context, first.ca).say(b"hello") == b"hello"


def test_old_protocols_are_refused():
    serving = generate(NAMES, NOW)
    tls = Tls()
    tls.use(serving)
    assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        Talk(tls.context, serving.ca, maximum=ssl.TLSVersion.TLSv1_1)


def test_with_an_authority_of_callers_others_are_not_heard(tmp_path):
    server, caller, stranger = (generate(NAMES, NOW) for _ in range(3))
    (tmp_path / "callers.crt").write_bytes(caller.ca)
    tls = Tls(tmp_path / "callers.crt")
    tls.use(server)
    with pytest.raises(ssl.SSLError):
        Talk(tls.context, server.ca)
    with pytest.raises(ssl.SSLError):
        Talk(tls.context, server.ca, shows=stranger.write(tmp_path / "stranger"))


class Talk:
    """A client of a TLS server, in memory; what it says is repeated by the server."""

    def __init__(self, server, ca, maximum=None, shows=None):
        client = ssl.create_default_context(cadata=ca.decode())
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        if maximum is not None:
            with warnings.catch_warnings(action="ignore"):
                client.minimum_version, client.maximum_version = ssl.TLSVersion.TLSv1, maximum
        if shows:
            client.load_cert_chain(*shows)
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ours = client.wrap_bio(down, up, server_hostname=NAMES[0])
        self.theirs = server.wrap_bio(up, down, server_side=True)
        waiting = {self.ours: None, self.theirs: None}
        while waiting:
            for side in list(waiting):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                    del waiting[side]

    def say(self, words):
        self.ours.write(words)
        heard = self.theirs.read()
        self.theirs.write(heard)
        return self.ours.read()


def test_the_key_is_readable_by_us_alone(tmp_path):
    certificate, key = generate(NAMES, NOW).write(tmp_path / "tls")
    assert key.stat().st_mode & 0o777 == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
