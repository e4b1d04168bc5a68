"""Every figure and table of the papers' evaluations: reproduced or not, with inputs and reason."""

from __future__ import annotations

from benchmarks.tables import markdown

_TESTBED = "a testbed of GPUs, which no simulation stands for"
_PAGE = "this page"

#: By paper: (figure or table, what it shows, reproduced, where and with which inputs, or why not).
FIGURES: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "Tiresias": (
        ("Fig. 2", "loss curves of production jobs", "no", "private jobs"),
        ("Fig. 3", "random against consolidated placement, by model", "no",
         "parameter servers of TensorFlow on a testbed; Gavel's consolidated and unconsolidated "
         "rates take its place: [locality](locality.md)"),
        ("Fig. 4, 5", "time to pause and resume", "no", _TESTBED + "; charged as 60 s"),
        ("Table 1", "SF, SRTF, SRSF", "in part", _PAGE + ", relative to Tiresias-L"),
        ("Fig. 7, 20", "three jobs under three orders", "yes",
         "tests/simulator/test_simulator_orderings.py, the paper's jobs, no seed"),
        ("Fig. 10", "mean JCT on the testbed", "in part",
         _PAGE + ", 480 jobs drawn with seeds 0-4; the paper's draw is not public"),
        ("Fig. 11", "GPU utilisation, makespan", "no", _TESTBED),
        ("Fig. 12", "gain by placement", "no", "needs the models' networks; see "
         "[locality](locality.md) for the gain of ours"),
        ("Table 4", "queueing delays", "no", "needs the testbed's preemption times"),
        ("Fig. 13, Table 5", "JCT of the trace, by scheduler", "in part",
         _PAGE + ", means on three Philly clusters; the paper's trace is private"),
        ("Fig. 14a, 14b, 15a, 15b", "thresholds and number of queues", "no", "not run"),
        ("Fig. 14c", "PROMOTEKNOB", "in part", _PAGE + ", philly-103959, no seed"),
        ("Fig. 15c", "PROMOTEKNOB, Gittins", "no", "not run"),
        ("Fig. 16-19", "the production workload", "no", "private trace"),
        ("Table 6", "skew of ten models", "in part", "VGG16 from its graph: "
         "tests/policy/test_policy_equations.py"),
    ),
    "Horus": (
        ("Fig. 1", "a production cluster", "no", "private trace"),
        ("Fig. 2-4", "interference and utilisation of co-located models", "no",
         "needs the two GPU types; the fitted curves are used as printed"),
        ("Fig. 6, Table 4", "regressors and their features", "in part",
         "[predictor](../predictor.md), other profiles; the paper's are private"),
        ("Fig. 7, Table 6", "JCT and makespan on the testbed", "in part",
         _PAGE + ", synthetic jobs, seeds 0-19"),
        ("Fig. 8", "utilisation on the testbed", "in part", _PAGE + ", the same runs"),
        ("Fig. 9, Table 7", "simulation at scale, waiting time", "in part",
         _PAGE + ", philly-0e4a51 in place of the private trace, seeds 0-4"),
    ),
    "OJPP": (
        ("Fig. 1, 3", "degradation of pairs", "no", "pictures; the printed pairs are inputs here"),
        ("Fig. 2", "memory over time", "no", "needs a GPU"),
        ("Fig. 4", "three placements", "no", "an illustration"),
        ("Fig. 5, 8", "degradation and devices of five systems", "in part",
         _PAGE + ", synthetic matrices, seeds 0-39"),
        ("Fig. 6, 10", "repair by OJPAP over time", "in part", _PAGE + ", before and after only"),
        ("Fig. 7, 11", "degradation by job; predicted against measured", "no",
         "needs the paper's matrix, which is a picture"),
        ("Fig. 9", "without the balance constraint", "in part",
         _PAGE + ", last columns of Table 5"),
        ("Table 5", "six settings of the bounds", "in part", _PAGE + ", the order, not the levels"),
    ),
    "SJF-BSBF": (
        ("Fig. 1", "three schedules of two jobs", "yes",
         "worked numbers of Theorem 1: tests/policy/test_policy_equations.py"),
        ("Fig. 2, 3", "throughput and interference of six models", "no",
         "pictures; Pollux' and Gavel's measurements take their place"),
        ("Table II, Fig. 4", "physical experiments, 16 GPUs", "no", _TESTBED),
        ("Table III, IV, Fig. 5", "240 and 480 jobs, small and large", "in part",
         _PAGE + ", mean JCT of 240 and 160 jobs of Pollux' workloads; 480 jobs and the split by "
         "size were not run"),
        ("Fig. 6a", "load sweep", "no", "not run"),
        ("Fig. 6b", "one ratio for all pairs", "in part", _PAGE),
    ),
    "Xonar": (
        ("Fig. 1", "JCT by the order of the queue", "yes", _PAGE + ", seeds 0-2"),
        ("Fig. 3", "profile of one iteration", "no", "needs a GPU"),
        ("Fig. 4", "JCT of serial, pairs and Xonar", "in part", _PAGE + ", seeds 0-49"),
        ("II-B, IV", "share of pairs out of memory", "in part", _PAGE + ", seeds 0-49"),
    ),
}  # fmt: skip


def evaluation(paper: str) -> str:
    """Return the section of a paper's page."""
    rows = [list(row) for row in FIGURES[paper]]
    columns = ["figure or table", "what it shows", "reproduced", "where and inputs, or why not"]
    return f"## Figures and tables of the evaluation\n\n{markdown(columns, rows)}"
