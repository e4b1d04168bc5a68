"""Random mixes of roles on random clusters: no gang starts in part, and none waits for a place."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest
from queue_builders import raw_pod
from test_queue_controller import Cluster, run

from tandem.kube.errors import NotFound
from tandem.kube.resource import PODS
from tandem.policy.catalog import load_profile

PROFILES = ("tandem", "fifo", "tiresias-l", "horus-f", "best-effort")
GANGS, ROUNDS = 4, 3


def first_fit(roles: list[tuple[int, int]], free: dict[str, int]) -> bool:
    """Say whether roles of (pods, GPUs of each) fit, each pod on the first node that has room."""
    room = dict(free)
    for pods, gpus in sorted(roles, key=lambda role: -role[1]):
        for _ in range(pods):
            node = next((node for node in sorted(room) if room[node] >= gpus), None)
            if node is None:
                return False
            room[node] -= gpus
    return True


def random_roles(rng: random.Random) -> list[tuple[int, int]]:
    sizes = rng.sample([1, 2, 3, 4, 8], rng.randint(2, 3))
    return [(rng.randint(1, 3), gpus) for gpus in sizes]


class Site(Cluster):
    """Nodes of random sizes, and what is free of each while nothing is shared."""

    def __init__(self, profile: str, sizes: list[int]) -> None:
        chosen = load_profile(profile)
        super().__init__(profile=chosen)
        self.blocks = chosen.order.blocks
        self.sizes = {f"n{number}": count for number, count in enumerate(sizes)}
        for name, count in self.sizes.items():
            self.add_node(name, gpus=count)

    def submit(self, name: str, roles: list[tuple[int, int]], time: int = 0) -> list[str]:
        """Create the pods of a gang; its controller makes them again with new names."""
        marks = {"tandem.gpu/gang": name, "tandem.gpu/gang-size": str(sum(n for n, _ in roles))}
        made = []
        for number, (pods, gpus) in enumerate(roles):
            for index in range(pods):
                made.append(f"{name}-{number}-{index}" + (f"-{time}" if time else ""))
                body = raw_pod(made[-1], gpus=gpus, annotations=marks, owner=("Job", name))
                self.api.create(PODS, body)
        return made

    def free(self) -> dict[str, int]:
        used = Counter[str]()
        for claim in self.state.ledger.counting().values():
            used[claim.node] += len(claim.gpus)
        return {name: count - used[name] for name, count in self.sizes.items()}

    def held(self, pods: list[str]) -> int | None:
        """Return how many pods are on nodes; None where some have been evicted."""
        try:
            return sum(bool(self.pod(name)["spec"].get("nodeName")) for name in pods)
        except NotFound:
            return None

    def planned(self, pods: list[str]) -> list[bool]:
        return [not self.gated(name) for name in pods]


@pytest.mark.long
def test_random_gangs_start_whole_and_none_that_first_fit_would_place_waits(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        for _ in range(12):
            site = Site(
                rng.choice(PROFILES), [rng.choice([1, 2, 4, 8]) for _ in range(rng.randint(2, 5))]
            )
            gangs = {f"g{number}": random_roles(rng) for number in range(GANGS)}
            pods: dict[str, list[str]] = {}
            for name, roles in gangs.items():
                free = site.free()
                pods[name] = site.submit(name, roles)
                for _ in range(ROUNDS):
                    await site.cycle()
                started = site.planned(pods[name])
                assert all(started) or not any(started), (name, roles, free)
                behind = site.blocks and any(
                    not site.planned(pods[other])[0] for other in pods if other != name
                )
                if first_fit(roles, free) and not behind:
                    assert all(started), (site.sizes, name, roles, free)
                for each in pods[name] if all(started) else ():
                    site.bind_as_planned(each)
                site.state.check()

    run(scenario)


def random_site(rng: random.Random) -> tuple[Site, dict[str, list[tuple[int, int]]]]:
    """Draw a site, and gangs of which each fits it while it is empty."""
    site = Site(rng.choice(PROFILES), [rng.choice([2, 4, 8]) for _ in range(3)])
    gangs: dict[str, list[tuple[int, int]]] = {}
    while len(gangs) < GANGS:
        roles = random_roles(rng)
        if first_fit(roles, site.free()):
            gangs[f"g{len(gangs)}"] = roles
    return site, gangs


def test_every_gang_that_fits_the_empty_cluster_ends_in_the_end(seed: int) -> None:
    """All are submitted at once; those that have a place run for a round and end."""
    rng = random.Random(seed)

    async def scenario() -> None:
        for _ in range(4):
            site, gangs = random_site(rng)
            pods = {name: site.submit(name, roles) for name, roles in gangs.items()}
            waiting = set(gangs)
            for _ in range(4 * GANGS):
                site.now += 10
                site.state.tick(site.now)
                for _ in range(2):
                    await site.cycle()
                for name in sorted(waiting):
                    started = site.planned(pods[name])
                    assert all(started) or not any(started), (site.sizes, name, gangs[name])
                    if all(started):
                        waiting.discard(name)
                        for each in pods[name]:
                            site.bind_as_planned(each)
                        await site.cycle()
                        for each in pods[name]:
                            site.set_phase(each, "Succeeded")
                if not waiting:
                    break
            assert not waiting, (site.sizes, {name: gangs[name] for name in waiting})

    run(scenario)


class Player:
    """Binds pods as they are planned, but those that are stuck, and makes evicted ones anew."""

    def __init__(self, site: Site, gangs: dict[str, list[tuple[int, int]]]) -> None:
        self.site, self.gangs = site, gangs
        self.pods = {name: site.submit(name, roles) for name, roles in gangs.items()}
        self.stuck: set[str] = set()
        self.waiting = set(gangs)
        self._made = dict.fromkeys(gangs, 1)
        self._since: dict[str, float] = {}

    async def play(self, name: str) -> float:
        """Return for how long a gang has held GPUs in part, in seconds."""
        site, pods = self.site, self.pods[name]
        if site.held(pods) is None:
            for each in pods:
                with suppress(NotFound):
                    site.api.delete(PODS, each, "default")
            self.pods[name] = site.submit(name, self.gangs[name], self._made[name])
            self._made[name] += 1
            self._since.pop(name, None)
            return 0
        for each in pods:
            on_node = site.pod(each)["spec"].get("nodeName")
            if not (on_node or site.gated(each) or each in self.stuck):
                with suppress(AssertionError):  # its plan has expired
                    site.bind_as_planned(each)
        held = site.held(pods)
        if held == len(pods):
            self.waiting.discard(name)
            await site.cycle()
            for each in pods:
                site.set_phase(each, "Succeeded")
        elif held:
            return site.now - self._since.setdefault(name, site.now)
        return 0


def test_no_gang_holds_gpus_in_part_for_longer_than_a_minute(seed: int) -> None:
    """Some pods do not get to their nodes for five minutes."""
    rng = random.Random(seed)
    step_s = 5

    async def scenario() -> None:
        for _ in range(4):
            site, gangs = random_site(rng)
            player = Player(site, gangs)
            named = (each for made in player.pods.values() for each in made)
            player.stuck = {each for each in named if rng.random() < 0.2}
            for step in range(400):
                if step == 300 // step_s:
                    player.stuck.clear()
                site.now += step_s
                site.state.tick(site.now)
                await site.cycle()
                await site.cycle()
                for name in sorted(player.waiting):
                    assert await player.play(name) <= 60 + 2 * step_s, (gangs, player.stuck)
            assert not player.waiting, (site.sizes, gangs)

    run(scenario)
