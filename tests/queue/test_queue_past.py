"""What is kept of the past: exact over restarts and takeovers, bounded, and each tenant's own."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from past_world import DAY_S, START_S, World
from test_queue_controller import run
from test_queue_kinds import make_ray_cluster, ray_cluster_of, resource_of, site, wait

from scheduler_extender.accounting.account import Account, Parts
from scheduler_extender.accounting.days import (
    MOST_JOBS,
    MOST_OF_NAMESPACE,
    OTHERS,
    Day,
    packed,
    unpacked,
)
from scheduler_extender.accounting.past import SLOTS
from scheduler_extender.accounting.report import report_of
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.waited import with_waits
from scheduler_extender.learning.observed import Watched
from scheduler_extender.learning.sharing import accrued_after
from tandem.contracts.learning import Accrued, Means, Observed, ObservedSlowdown
from tandem.contracts.resources import GPUJobStatus, Phase, PodUse
from tandem.kube.resource import CONFIG_MAPS, GPU_JOBS, PODS
from tandem.reasons.causes import Cause, Reason

SEEDS = 60


def account(uid: str, **more: object) -> Account:
    known: dict = {
        "uid": uid, "namespace": "a", "name": uid, "user": "ada", "model": "bert",
        "gpu_type": "A100", "gpus": 2, "queued_s": START_S, "started_s": START_S + 100,
        "until_s": START_S + 1100, "held_gpu_s": 2000.0, "parts": Parts(), "waits": {"Queued": 100},
        "phase": "Completed",
    }  # fmt: skip
    return Account(**(known | more))


def total(day: Day, namespace: str | None = None) -> dict:
    return report_of({day.number: day}, START_S, 1, "namespace", namespace)["total"]


# --- waits ------------------------------------------------------------------------------------


def test_a_wait_counts_for_the_cause_that_was_given_meanwhile() -> None:
    waits = GPUJobStatus(
        phase=Phase.QUEUED,
        waiting_since=rfc3339(1000),
        causes=[Cause(Reason.NEEDS_GPUS, gpus=1), Cause(Reason.MEMORY)],
    )
    taken = waits.model_copy(update={"causes": [Cause(Reason.PLACES_TAKEN)]})
    first = with_waits(waits, taken, 1030)
    second = with_waits(first, first, 1100)
    assert {each.reason: each.seconds for each in second.waits} == {
        "MemoryTooSmall": 30.0,
        "PlacesTaken": 70.0,
    }
    runs = second.model_copy(update={"phase": Phase.RUNNING, "waiting_since": None})
    assert with_waits(runs, runs, 2000).waits == second.waits
    # Its next wait begins when it has given up its GPUs, and adds to the first.
    again = runs.model_copy(update={"phase": Phase.SUSPENDED, "waiting_since": rfc3339(3000)})
    assert with_waits(again, again, 3010).waits[1].seconds == 80.0


# --- what agents see --------------------------------------------------------------------------


def watched(*others: str, busy: float = 90.0, uses: float | None = 40.0) -> Watched:
    use = PodUse(uid="p", namespace="a", pod="p", utilisation_percent=uses)
    rates = {} if uses is None else {Means.UTILISATION: uses}
    found = Watched("p", ("n0", "GPU-0"), "A100", use, busy_percent=busy, now=rates)
    found.others = frozenset(others)
    return found


MEASURED = ObservedSlowdown(value=0.25, means="utilisation", reference="solo")


@pytest.mark.parametrize(
    ("seen", "slowdown", "expected"),
    [
        (watched(), None, {"used_gpu_seconds": 4.0}),
        (
            watched("q"),
            MEASURED,
            {"used_gpu_seconds": 4.0, "beside_gpu_seconds": 5.0, "lost_gpu_seconds": 2.0},
        ),
        (
            watched("q"),
            None,
            {
                "used_gpu_seconds": 4.0,
                "predicted_beside_gpu_seconds": 5.0,
                "predicted_lost_gpu_seconds": 5.0,
            },
        ),
        (watched("q", busy=50.0), None, {"used_gpu_seconds": 4.0, "beside_gpu_seconds": 5.0}),
        (
            watched("q", "", "r"),
            MEASURED,
            {"used_gpu_seconds": 4.0, "beside_gpu_seconds": 6.667, "lost_gpu_seconds": 2.0},
        ),
        (
            watched("q", uses=None),
            MEASURED,
            {"measured_gpu_seconds": 0.0, "beside_gpu_seconds": 5.0, "lost_gpu_seconds": 2.0},
        ),
    ],
    ids=["alone", "measured", "predicted", "idle", "two", "not-measured"],
)
def test_ten_seconds_on_a_gpu(seen: Watched, slowdown: object, expected: dict) -> None:
    found = accrued_after(Accrued(), [seen], slowdown, lambda _: 1.0, 10.0)  # type: ignore[arg-type] # or None
    known = {"seen_gpu_seconds": 10.0, "measured_gpu_seconds": 10.0} | expected
    assert found == Accrued(**known)


# --- sums of a day ----------------------------------------------------------------------------


def test_the_figures_of_a_job() -> None:
    """Two GPUs for 1,000 s next to one neighbour, at a slowdown of 0.25.

    Half of 2,000 GPU-seconds are the neighbour's; 1 - 1 / 1.25 = 0.2 of them are lost: the work
    needs 1,600 alone, and has taken 1,000.
    """
    day = Day(int(START_S // DAY_S))
    day.take(account("j", parts=Parts(used=0.4, used_measured=True, neighbours=0.5, lost=0.2)))
    found = total(day)
    assert found["askedGpuSeconds"] == 2 * 1100
    assert found["heldGpuSeconds"] == 2000
    assert found["usedGpuSeconds"] == 800
    assert found["occupiedGpuSeconds"] == 1000
    assert found["savedGpuSeconds"] == 600
    assert found["lostGpuSeconds"] == 400
    assert found["waitSecondsByReason"] == {"Queued": 100}
    assert found["waits"] == [{"reason": "other", "words": "Another reason", "seconds": 100.0}]
    assert (found["jobs"], found["ranSeconds"]) == (1, 1000)
    assert found["usedPredictedGpuSeconds"] == found["savedPredictedGpuSeconds"] == 0


def test_what_is_predicted_is_apart_from_what_is_measured() -> None:
    day = Day(int(START_S // DAY_S))
    day.take(account("j", parts=Parts(used=0.4, predicted_neighbours=0.5, predicted_lost=0.1)))
    found = total(day)
    assert (found["usedGpuSeconds"], found["usedPredictedGpuSeconds"]) == (0, 800)
    assert (found["savedGpuSeconds"], found["savedPredictedGpuSeconds"]) == (0, 800)
    assert (found["lostGpuSeconds"], found["lostPredictedGpuSeconds"]) == (0, 200)


def test_a_job_is_counted_once_however_often_its_end_is_taken() -> None:
    day = Day(int(START_S // DAY_S))
    for each in (account("j"), account("j"), account("j", until_s=START_S + 1000)):
        day.take(each)
    assert total(day)["heldGpuSeconds"] == 2000
    # After an hour its uid is forgotten, and it is known by its time.
    day.settle(START_S + 1100 + 3600)
    assert not day.ended
    day.take(account("j"))
    assert total(day)["jobs"] == 1


def test_a_day_is_stored_and_read_again_as_it_was() -> None:
    day = Day(int(START_S // DAY_S))
    day.take(account("j", neighbours=(("bert@32", 0.25),), slowdown=0.2))
    day.take(account("killed", phase="Deleted"))
    day.close([account("open", phase="", held_gpu_s=12.5)])
    assert unpacked(packed(day)) == day


def test_a_job_over_midnight_is_in_both_days() -> None:
    day = Day(int(START_S // DAY_S))
    day.close([account("j", phase="", held_gpu_s=1500.0, until_s=START_S + 850)])
    after = day.next(day.number + 1)
    after.take(account("j"))
    found = report_of({d.number: d for d in (day, after)}, START_S + DAY_S, 2, "day", None)
    held = [row["heldGpuSeconds"] for row in found["rows"]]
    assert held == [1500, 500]
    assert sum(row["askedGpuSeconds"] for row in found["rows"]) == 2 * 1100


def test_rows_and_single_jobs_of_a_day_are_bounded_and_no_tenant_takes_those_of_others() -> None:
    day = Day(int(START_S // DAY_S))
    day.take(account("own", namespace="quiet"))
    for number in range(MOST_JOBS + 200):
        day.take(account(f"j{number}", user=f"u{number}"))
    assert len(day.rows) <= MOST_OF_NAMESPACE + 2
    assert ("a", OTHERS, OTHERS, "A100") in day.rows
    assert total(day, "a")["heldGpuSeconds"] == 2000 * (MOST_JOBS + 200)
    assert len(day.jobs) == MOST_JOBS
    assert any(job["namespace"] == "quiet" for job in day.jobs)


@pytest.mark.long
def test_ten_thousand_jobs_a_day_fit_into_a_config_map_several_times() -> None:
    """With 2,500 open jobs at midnight, the ends of an hour, and names that do not repeat."""
    random = Random(1)
    day = Day(int(START_S // DAY_S))

    def job(number: int, phase: str = "Completed") -> Account:
        uid = f"{random.getrandbits(128):032x}"
        end_s = START_S + 8.6 * number
        kinds = [(f"{random.getrandbits(256):064x}@32", 0.2) for _ in range(4)]
        return account(
            uid, namespace=f"team-{number % 40}", user=f"user-{number % 400}",
            model=f"model-{number % 30}", name=f"job-{uid[:20]}", until_s=end_s, phase=phase,
            held_gpu_s=random.random() * 1e5, neighbours=tuple(kinds), slowdown=random.random(),
        )  # fmt: skip

    for number in range(10_000):
        day.take(job(number))
    day.settle(START_S + DAY_S)
    day.close([job(number, "") for number in range(2500)])
    content = packed(day)
    print(f"{len(content)} bytes, {len(day.rows)} rows, {len(day.jobs)} jobs")
    assert len(content) < 450_000
    assert packed(unpacked(content)) == content


# --- kills and takeovers ----------------------------------------------------------------------


def test_a_killed_leader_loses_nothing_and_its_successor_counts_nothing_twice() -> None:
    world = World()
    world.new_job("j", gpus=2)
    world.now += 100
    world.run("j")
    world.now += 1000
    world.close("j")
    world.save("after")  # it was stored, and the leader is killed before it knows
    world.kill_the_leader()
    world.now += 60
    world.save()
    assert world.report()["total"]["heldGpuSeconds"] == pytest.approx(2000)
    assert world.report()["total"]["jobs"] == 1
    world.delete("j")
    world.now += 4000
    world.save()
    world.kill_all()
    assert world.report()["total"]["heldGpuSeconds"] == pytest.approx(2000)


def test_a_job_that_is_deleted_while_it_runs_counts_until_its_containers_end() -> None:
    world = World()
    world.new_job("j", gpus=4)
    uid = world.run("j")
    world.now += 1000
    world.delete("j")
    world.save()
    world.now += 20
    assert world.report()["total"]["heldGpuSeconds"] == pytest.approx(4000)
    world.remove_pod(uid)
    world.now += 20
    world.save()
    found = world.report()
    assert found["total"]["heldGpuSeconds"] == pytest.approx(4 * 1020)
    assert [job["phase"] for job in found["jobs"]] == ["Deleted"]


def test_a_standby_answers_as_the_leader_does() -> None:
    world = World()
    for name in ("a", "b"):
        world.new_job(name)
        world.run(name)
    world.now += 500
    world.close("a")
    world.save()
    world.now += 120
    answers = [
        asyncio.run(each.past.report(world.api, 7, "namespace", None)) for each in world.replicas
    ]
    assert answers[0] == answers[1]
    assert answers[0]["total"]["heldGpuSeconds"] == pytest.approx(500 + 620)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_sums_are_the_pods_own_times_whichever_replica_is_killed(seed: int) -> None:
    random, world, numbers = Random(seed), World(), iter(range(10_000))
    for _ in range(120):
        names = list(world.jobs)
        name = random.choice(names) if names else ""
        closed = bool(name) and world.jobs[name].status.finished_at is not None
        match random.choice(
            ("new", "run", "run", "end", "close", "delete", "save", "save", "fail", "kill", "wait",
             "remove", "write", "midnight", "all")
        ):  # fmt: skip
            case "new":
                world.new_job(f"j{next(numbers)}", gpus=random.choice((1, 2, 8)))
            case "run" if name and (not closed or random.random() < 0.3):
                world.run(name)
            case "end" if name and (pods := world.pods_of(name)):
                world.end_pod(random.choice(pods))
            case "remove" if name and (pods := world.pods_of(name)):
                world.remove_pod(random.choice(pods))
            case "write" if name and not closed:
                world.write(name, world.jobs[name].status)
            case "close" if name and not closed:
                world.close(name, failed=random.random() < 0.3)
            case "delete" if name:
                pods = world.pods_of(name)
                world.delete(name)
                world.now += random.choice((0, 1, 30))
                for uid in pods:
                    world.remove_pod(uid)
            case "save":
                world.save()
            case "fail":
                world.save(random.choice(("before", "after")))
            case "kill" if not world.no_other_knows(world.replicas[1]):
                world.kill_the_leader()
            case "all" if not world.no_other_knows():
                world.kill_all()
            case "midnight":
                world.now = (world.now // DAY_S + 1) * DAY_S + random.random() * 30
                world.save()
        world.now += random.choice((0.5, 11, 61, 1000))
        found = world.report(by=random.choice(("day", "namespace", "gpu-type")))
        assert found["total"]["heldGpuSeconds"] == pytest.approx(world.held(), rel=1e-3, abs=1e-2)
        assert sum(row["heldGpuSeconds"] for row in found["rows"]) == pytest.approx(
            world.held(), rel=1e-3, abs=1e-2
        )


@pytest.mark.long
def test_a_thousand_jobs_over_days_of_kills_takeovers_and_failed_writes() -> None:
    """Every job is in the report once, with the time that its pods' own records have."""
    random, world, open_jobs, made = Random(7), World(), list[str](), 0
    takeovers = failures = 0
    while made < 1000 or open_jobs:
        if made < 1000 and (len(open_jobs) < 40 or random.random() < 0.3):
            name = f"j{made}"
            world.new_job(name, gpus=random.choice((1, 1, 2, 4, 8)), namespace=f"team-{made % 7}")
            open_jobs.append(name)
            made += 1
        else:
            _live(world, random, random.choice(open_jobs), open_jobs)
        world.now += random.choice((5, 40, 200, 600))
        chance = random.random()
        if chance < 0.015 and not world.no_other_knows(world.replicas[1]):
            world.kill_the_leader()
            takeovers += 1
        elif chance < 0.04:
            world.save(random.choice(("before", "after")))
            failures += 1
        elif chance < 0.12:
            world.save()
    found = world.report(by="namespace")
    print(f"{takeovers} takeovers, {failures} failed writes, {found['total']['heldGpuSeconds']} s")
    assert takeovers > 5
    assert failures > 20
    assert found["total"]["jobs"] == 1000
    assert found["total"]["heldGpuSeconds"] == pytest.approx(world.held(), rel=1e-3)
    of = {row["key"]: row["heldGpuSeconds"] for row in found["rows"]}
    for number in range(7):
        own = sum(ran for name, ran in world.ran.items() if int(name[1:]) % 7 == number)
        assert of[f"team-{number}"] == pytest.approx(own, rel=1e-3)


def _live(world: World, random: Random, name: str, open_jobs: list[str]) -> None:
    """Let something happen to a job that has not ended."""
    pods, chance = world.pods_of(name), random.random()
    if not pods or chance < 0.15:
        world.run(name)
    elif chance < 0.25:
        world.remove_pod(random.choice(pods))
    elif chance < 0.9:
        open_jobs.remove(name)
        if chance < 0.85:
            world.close(name)
        if chance < 0.65 or chance >= 0.85:
            world.delete(name)
            world.now += 3
            for uid in pods:
                world.remove_pod(uid)
    else:
        world.write(name, world.jobs[name].status)


# --- bounds -----------------------------------------------------------------------------------


def test_writes_are_rare_and_nothing_is_written_while_nothing_happens() -> None:
    world = World()
    world.save()
    before = world.api.writes
    for number in range(60):
        world.new_job(f"j{number}")
        world.run(f"j{number}")
        world.now += 1
        world.close(f"j{number}")
        world.save()
    assert world.api.writes - before <= 2
    world.now += 60
    world.save()
    before = world.api.writes
    for _ in range(100):
        world.now += 60
        world.save()
    assert world.api.writes == before


def test_a_day_takes_the_place_of_the_one_before_thirty_others() -> None:
    world = World()
    for number in range(40):
        name = f"j{number}"
        world.new_job(name)
        world.run(name)
        world.now += 100
        world.close(name)
        world.save()
        world.delete(name)
        for uid in world.pods_of(name):
            world.remove_pod(uid)
        world.now += DAY_S - 100
        for _ in range(3):
            world.save()
            world.now += 11
        world.now -= 33
    assert len(world.api.list(CONFIG_MAPS, "tandem-system")) == SLOTS
    found = world.report()
    assert found["total"]["jobs"] == pytest.approx(30, abs=1)
    assert world.report(days=1)["total"]["jobs"] <= 1


def test_what_cannot_be_read_is_left_out() -> None:
    world = World()
    body = {"metadata": {"name": f"tandem-past-{int(START_S // DAY_S) % SLOTS}",
                         "namespace": "tandem-system"}, "binaryData": {"day": "bm8="}}  # fmt: skip
    world.api.create(CONFIG_MAPS, body, "tandem-system")
    world.new_job("j")
    world.run("j")
    world.now += 100
    world.close("j")
    world.save()
    assert world.report()["total"]["heldGpuSeconds"] == pytest.approx(100)


def test_a_job_with_a_time_that_is_none_is_left_out_and_ends_no_event() -> None:
    world = World()
    for name in ("good", "bad"):
        world.new_job(name)
        world.run(name)
    world.now += 100
    world.close("good")
    broken = world.jobs["bad"].status.model_copy(
        update={"phase": Phase.COMPLETED, "finished_at": "2026-06-31T00:00:00Z"}
    )
    world.write("bad", broken)
    world.save()
    assert [job["name"] for job in world.report()["jobs"]] == ["good"]
    queued = broken.model_copy(update={"queued_at": "2026-06-31T00:00:00Z", "finished_at": None})
    world.write("bad", queued.model_copy(update={"phase": Phase.RUNNING}))
    world.delete("bad")
    assert [job["name"] for job in world.report()["jobs"]] == ["good"]


# --- whose it is ------------------------------------------------------------------------------


def test_a_tenant_is_shown_the_same_with_and_without_others() -> None:
    def made(*, others: bool) -> dict:
        world = World()
        for number in range(3):
            world.new_job(f"j{number}", namespace="team-a", user="ada")
            world.run(f"j{number}")
            if others:
                world.new_job(f"o{number}", namespace="team-b", gpus=8)
                world.run(f"o{number}")
        world.now += 300
        for name in ("j0", "j1", *(["o0", "o1"] if others else [])):
            world.close(name)
        world.save()
        world.now += 60
        return world.report(by="user", namespace="team-a")

    alone = made(others=False)
    assert made(others=True) == alone
    assert [row["key"] for row in alone["rows"]] == ["ada"]
    assert alone["total"]["jobs"] == 2


def test_observed_shares_of_a_job_are_those_of_its_gpujob() -> None:
    world = World()
    world.new_job("j")
    world.run("j")
    world.now += 1000
    seen = Observed(
        at=rfc3339(world.now),
        gpu_model="H100",
        slowdown=ObservedSlowdown(value=0.25, means="utilisation", reference="solo"),
        accrued=Accrued(
            seen_gpu_seconds=900,
            measured_gpu_seconds=900,
            used_gpu_seconds=450,
            beside_gpu_seconds=450,
            lost_gpu_seconds=180,
        ),
    )
    world.write("j", world.jobs["j"].status.model_copy(update={"observed": seen}))
    world.close("j")
    world.save()
    found = world.report(by="gpu-type")
    assert [row["key"] for row in found["rows"]] == ["H100"]
    assert found["total"]["usedGpuSeconds"] == pytest.approx(500)
    assert found["total"]["savedGpuSeconds"] == pytest.approx(300)
    assert found["total"]["lostGpuSeconds"] == pytest.approx(200)


def test_a_job_that_carries_on_another_asks_for_its_gpus_once() -> None:
    """KubeRay makes a RayCluster of another name when a RayJob is resumed."""
    cluster = site(2)
    began, past = cluster.now, cluster.controller.past
    past._namespace = "tandem-system"

    async def scenario() -> None:
        first = ray_cluster_of(cluster, "RayJob", "r")
        await wait(cluster)
        (owner,) = cluster.gpujob(first)["metadata"]["ownerReferences"]
        for index in range(2):
            cluster.bind_as_planned(f"p{index}")
            runs = [{"state": {"running": {"startedAt": rfc3339(cluster.now)}}}]
            status = {"status": {"phase": "Running", "containerStatuses": runs}}
            cluster.api.patch(PODS, f"p{index}", status, "default", subresource="status")
        await wait(cluster, 100)
        cluster.api.delete(resource_of("RayCluster"), "r-x", "default")
        for index in range(2):
            cluster.api.delete(PODS, f"p{index}", "default")
        await wait(cluster, 100)
        make_ray_cluster(cluster, owner | {"controller": True}, "r-y", "q")
        await wait(cluster, 100)
        (job,) = cluster.api.list(GPU_JOBS, "default")
        assert job["metadata"]["name"] == "raycluster-r-y"
        found = (await past.report(cluster.api, 1, "namespace", None))["total"]
        assert found["askedGpuSeconds"] == pytest.approx(2 * (cluster.now - began), abs=4)
        assert found["jobs"] == 0, "it has not ended"
        cluster.api.delete(resource_of("RayCluster"), "r-y", "default")
        cluster.api.delete(resource_of("RayJob"), "r", "default")
        for index in range(2):
            cluster.api.delete(PODS, f"q{index}", "default")
        ended = cluster.now
        await wait(cluster, 100)
        assert not cluster.api.list(GPU_JOBS, "default")
        found = (await past.report(cluster.api, 1, "namespace", None))["total"]
        assert found["askedGpuSeconds"] == pytest.approx(2 * (ended - began), abs=80)
        assert found["jobs"] == 1
        assert found["ranSeconds"] == pytest.approx(ended - began, abs=40)

    run(scenario)
