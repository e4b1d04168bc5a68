"""A job as the policies see it: one gang, its demand and its history."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from tandem.policy.units import BYTES_PER_GIB, Floats

#: Classes of interference that no table of predictions describes.
EMPTY_SLOT = 0
UNKNOWN = 1


@dataclass(frozen=True, slots=True)
class SubBatch:
    """A way to run the user's batch in `steps` micro-batches by gradient accumulation."""

    steps: int
    memory_base_gib: float
    memory_peak_extra_gib: float
    stretch: float  # time of an iteration, as a multiple of that with the batch as submitted
    gpu_utilisation: float | None = None  # percent; None: the job's
    # What a micro-batch takes of a GPU, by which its interference is predicted: seconds, and shares
    # of the FLOP rate and the bandwidth. Empty where they are not known.
    rates: tuple[float, ...] = ()
    # Interference of its own, as in `Job`: a smaller sub-batch may disturb less. None: the job's.
    interference_class: int | None = None
    own_slowdown: Floats | None = field(default=None, compare=False, repr=False)
    caused_slowdown: Floats | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Parameters of the time and the memory of one iteration: [SJF-BSBF] Eq. (3), (4), (7)."""

    batch: int  # items a GPU and iteration
    compute_fixed_s: float  # a of Eq. (3)
    compute_per_item_s: float  # b of Eq. (3)
    message_bytes: float = 0.0  # M of Eq. (4)
    communication_fixed_s: float = 0.0  # a' of Eq. (4)
    communication_per_byte_s: float = 0.0  # b' of Eq. (4)
    overlap: float = 1.0  # delta of Eq. (7): 1 for none
    memory_fixed_gib: float = 0.0  # whatever the batch is: weights, gradients, optimizer
    memory_per_item_gib: float = 0.0
    memory_peak_extra_gib: float = 0.0


@dataclass(frozen=True, slots=True)
class Placing:
    """A gang while its workers are placed one by one."""

    handle: int  # its name among the residents
    least_slowdown: float = float("inf")  # that one of its workers is sure to have in the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A gang of `pods` pods that start together; each takes `gpus_per_pod` GPUs of one node.

    The load is that of one worker on one GPU, in the upper estimate wherever a constraint must be
    safe. `exclusive` jobs, and jobs about which nothing is known, never share a GPU.
    """

    id: str
    pods: int = 1
    gpus_per_pod: int = 1
    gang_gpus: int = 0  # of the whole gang, where these are some of its pods
    memory_base_gib: float = 0.0  # level outside peaks; [OJPP] gamma
    memory_peak_extra_gib: float = 0.0  # what a peak adds; [OJPP] delta
    peak_probability: float = 0.0  # chance of being in the peak; [OJPP] p
    peak_measured: bool = False  # p, and what a peak adds, are measured and not assumed
    gpu_utilisation: float = 100.0  # percent of one GPU
    active_share: float | None = None  # measured share of the time with kernels; [Xonar] III-A
    exclusive: bool = False
    checkpointable: bool = False
    queued_at_s: float = 0.0
    attained_gpu_seconds: float = 0.0
    model: str = ""
    remaining_s: float | None = None  # time left when run alone, only where it is known
    skewed: bool = True  # one tensor dominates the model, so spreading costs; unknown counts so
    spread_slowdown: float = 0.0  # predicted of a gang on more nodes than it needs
    # Predicted interference. The class is a row of the table of predictions; the vectors are that
    # row and that column: (classes,) slowdown of this job next to each class, and of each next to
    # it. Class 0 is an empty slot (slowdown 0), class 1 an unknown model (infinite). None: no
    # predictions.
    interference_class: int = UNKNOWN
    own_slowdown: Floats | None = field(default=None, compare=False, repr=False)
    caused_slowdown: Floats | None = field(default=None, compare=False, repr=False)
    experience: str = ""  # whose own, where the predictions are not everybody's
    # What gradient accumulation offers, fewest steps first; memory falls, the stretch does not.
    sub_batches: tuple[SubBatch, ...] = ()
    iteration: Iteration | None = None  # from which sub-batches follow where none are given
    accumulation_steps: int = 1  # as it runs
    stretch: float = 1.0
    placing: Placing | None = field(default=None, compare=False, repr=False)
    migration_s: float | None = None  # measured: to stop, save, load and start; None: never yet
    where: int = 0  # names the set of nodes that may run its pods; 0 is all of them
    # Levels of a `Topology`: in one domain of which its pods must, or should, be; "": of none.
    required_topology: str = ""
    preferred_topology: str = ""

    @property
    def asks_topology(self) -> bool:
        """True where it requires or prefers a level of topology."""
        return bool(self.required_topology or self.preferred_topology)

    @property
    def namespace(self) -> str:
        """The namespace that its id names; '' where it names none, as in most traces."""
        return self.id.rpartition("/")[0]

    @property
    def peaks_may_meet(self) -> bool:
        """True where its peaks are measured, and an eviction by the memory guard costs little."""
        return self.peak_measured and self.checkpointable

    @property
    def gpus(self) -> int:
        """GPUs (shares of different ones) that the whole gang takes."""
        return self.pods * self.gpus_per_pod

    @property
    def spans(self) -> bool:
        """True where it has several GPUs in all, whose processes work together."""
        return self.gang_gpus > 1 or self.pods > 1 or self.gpus_per_pod > 1

    @property
    def busy_share(self) -> float:
        """Share of its time that a worker keeps a GPU busy: as measured, else its utilisation."""
        share = self.gpu_utilisation / 100 if self.active_share is None else self.active_share
        return min(share, 1.0)

    @property
    def memory_peak_gib(self) -> float:
        """Memory in the peak."""
        return self.memory_base_gib + self.memory_peak_extra_gib

    def with_sub_batch(self, chosen: SubBatch) -> Job:
        """Return the job as it is when it runs in micro-batches."""
        return replace(
            self,
            memory_base_gib=chosen.memory_base_gib,
            memory_peak_extra_gib=chosen.memory_peak_extra_gib,
            accumulation_steps=chosen.steps,
            stretch=chosen.stretch,
            gpu_utilisation=(
                self.gpu_utilisation if chosen.gpu_utilisation is None else chosen.gpu_utilisation
            ),
            interference_class=(
                self.interference_class
                if chosen.interference_class is None
                else chosen.interference_class
            ),
            own_slowdown=self.own_slowdown if chosen.own_slowdown is None else chosen.own_slowdown,
            caused_slowdown=(
                self.caused_slowdown if chosen.caused_slowdown is None else chosen.caused_slowdown
            ),
        )

    def with_class(self, index: int, own: Floats, caused: Floats) -> Job:
        """Return the job with its class of interference and the predictions of that class."""
        # For each pod when a cluster is read: `replace` takes four times as long.
        new = object.__new__(Job)
        for name in _FIELDS:
            object.__setattr__(new, name, getattr(self, name))
        object.__setattr__(new, "interference_class", index)
        object.__setattr__(new, "own_slowdown", own)
        object.__setattr__(new, "caused_slowdown", caused)
        return new

    @property
    def demand(self) -> tuple[object, ...]:
        """All that decides where the job may go: equal demands get equal answers."""
        return (
            self.pods, self.gpus_per_pod, self.memory_base_gib, self.memory_peak_extra_gib,
            self.peak_probability, self.peaks_may_meet, self.gpu_utilisation, self.active_share,
            self.exclusive, self.skewed, self.spans,
            self.spread_slowdown, self.interference_class, self.sub_batches, self.iteration,
            self.experience, self.where, self.required_topology, self.preferred_topology,
        )  # fmt: skip


_FIELDS = tuple(each.name for each in fields(Job))


def gib(number_of_bytes: float) -> float:
    """Convert bytes to GiB."""
    return number_of_bytes / BYTES_PER_GIB
