"""Every figure and table of the papers' evaluations: reproduced or not, with inputs and reason.

    python -m studies.papers.evaluation

writes the section of each paper's page under docs/evidence/results, without running anything.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.pages import FOLDER
from benchmarks.tables import markdown

_HEADING = "## Figures and tables of the evaluation"

_TESTBED = "a testbed of GPUs, which no simulation stands for"
_DRAWING = "a drawing or a list: nothing is measured in it"
_PAGE = "this page"
_TRACE = "[traces](tiresias-trace.md)"
_PLACEMENT = "[consolidation](tiresias-placement.md)"
_MEASURED = "[measured pairs](ojpp-measured.md)"
_LOADS = "[loads](sjf-bsbf-loads.md)"

#: By paper: (figure or table, what it shows, reproduced, where and with which inputs, or why not).
#: Every figure and table of the text is in one row (tests/papers/test_papers_evaluation.py).
FIGURES: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "Tiresias": (
        ("Fig. 1, 6, 8, 9", "parameter servers, components, queues, states", "-", _DRAWING),
        ("Fig. 2", "loss curves of production jobs", "no", "private jobs"),
        ("Fig. 3", "random against consolidated placement, by model", "in part",
         _PLACEMENT + ", Gavel's and Pollux' measurements of other models, no seed; the paper's "
         "need TensorFlow's parameter servers"),
        ("Fig. 4, 5", "time to pause and resume", "no", _TESTBED + "; charged as 60 s elsewhere"),
        ("Table 1", "SF, SRTF, SRSF", "in part", _TRACE + ", Philly traces, no seed; "
         "the paper's trace is private"),
        ("Fig. 7, 20", "three jobs under three orders, and their Gittins index", "yes",
         "tests/simulator/test_simulator_orderings.py, the paper's jobs, no seed"),
        ("Table 2", "features of cluster managers", "-", _DRAWING),
        ("Table 3", "bins of the jobs", "yes", "an input of this page"),
        ("Fig. 10", "mean and median JCT on the testbed", "in part",
         _PAGE + ", 480 jobs drawn with seeds 0-4; the paper's draw is not public"),
        ("Fig. 11", "GPU utilisation and makespan", "in part",
         _PAGE + ", GPUs in use instead of their counters; seeds 0-4"),
        ("Fig. 12", "gain by placement", "in part",
         _PLACEMENT + ", seeds 0-2; what spreading costs is Gavel's, or our price by skew"),
        ("Table 4", "queueing delays", "in part", _PAGE + ", seeds 0-4, preemptions free"),
        ("5.2.4", "number and cost of preemptions", "in part", "the number: this page, seeds 0-4,"
         " preemptions free; the cost is that of a testbed of GPUs"),
        ("Fig. 13, Table 5", "JCT of the trace, by scheduler", "in part",
         _TRACE + ", Philly traces, no seed; the paper's trace is private"),
        ("Fig. 14, 15", "thresholds, queues, PROMOTEKNOB, of L and of G", "in part",
         _TRACE + ", philly-103959, no seed"),
        ("Fig. 16, 17, 18, 19", "the production workload", "no", "private trace"),
        ("Table 6", "skew of ten models", "yes", "all ten, from the sizes of their tensors:"
         " tests/papers/test_papers_evaluation.py; inputs of"
         " [consolidation](tiresias-placement.md)"),
    ),
    "Horus": (
        ("Fig. 1", "a production cluster", "no", "private trace"),
        ("Fig. 2, 3, 4", "interference and utilisation of co-located models", "no",
         "needs the two GPU types; the fitted curves are used as printed"),
        ("Table 1, 2, 3, 5; Fig. 5", "hardware, models, features, notation, architecture", "-",
         _DRAWING),
        ("Fig. 6, Table 4", "features and error of regressors", "in part",
         "[predictor](../../predictor.md), other profiles; the paper's are private"),
        ("Fig. 7, Table 6", "JCT and makespan on the testbed", "in part",
         _PAGE + ", synthetic jobs, seeds 0-19"),
        ("Fig. 8", "utilisation on the testbed", "in part", _PAGE + ", the same runs"),
        ("Fig. 9, Table 7", "simulation at scale, waiting time; number of queues", "in part",
         _PAGE + ", philly-0e4a51 in place of the private trace, seeds 0-4"),
    ),
    "OJPP": (
        ("Table 1, 2, 3, 4; Fig. 4", "kinds of clusters, notation, models, systems; placements",
         "-", _DRAWING),
        ("Fig. 1, 3", "degradation of pairs", "no",
         "pictures; the printed pairs are inputs here, Gavel's of " + _MEASURED),
        ("Fig. 2", "memory over time", "no", "needs a GPU; the printed course is an input here"),
        ("Fig. 5, 8", "degradation and devices of five systems", "in part",
         _PAGE + ", synthetic matrices, seeds 0-39; " + _MEASURED + ", seeds 0-2"),
        ("Fig. 6, 10", "improvement; repair by OJPAP over time", "in part",
         _PAGE + ", before and after only"),
        ("Fig. 7", "degradation by job", "in part", _MEASURED + ", other models, seeds 0-2"),
        ("Fig. 9", "with and without balance, by workers", "in part", _MEASURED + ", seeds 0-2"),
        ("Fig. 11", "with predicted and measured slowdowns", "in part",
         _MEASURED + ", seeds 0-2; the paper's matrix is a picture"),
        ("Table 5", "six settings of the bounds", "in part",
         _PAGE + " and " + _MEASURED + ": the order, not the levels"),
        ("Eq. 3", "gain of opportunistic memory", "in part",
         "[memory](ojpp-memory.md), seeds 0-2; no figure in the paper"),
    ),
    "SJF-BSBF": (
        ("Table I", "notation", "-", _DRAWING),
        ("Fig. 1", "three schedules of two jobs", "yes",
         "worked numbers of Theorem 1: tests/policy/test_policy_equations.py"),
        ("Fig. 2, 3", "throughput and interference of six models", "no",
         "pictures; Pollux' and Gavel's measurements take their place"),
        ("Table II, Fig. 4", "testbed of 16 GPUs, 30 jobs", "in part",
         "[testbed](sjf-bsbf-testbed.md), simulated, seeds 0-2"),
        ("6.3", "simulator within 5 % of the testbed", "no", _TESTBED),
        ("Table III, IV, Fig. 5", "240 and 480 jobs, large and small, by model", "in part",
         _LOADS + ", the mix of the paper, seed 0; " + _PAGE + ", Pollux' own mixes"),
        ("Fig. 6", "load; one ratio for all pairs", "in part",
         _LOADS + ", seed 0; the ratios: " + _PAGE),
    ),
    "Xonar": (
        ("Fig. 1", "JCT by the order of the queue", "in part",
         "[orders](xonar-orders.md), drawn and measured jobs, seeds 0-7"),
        ("Fig. 2", "components", "-", _DRAWING),
        ("Fig. 3", "profile of one iteration; active and idle times", "no",
         "needs a GPU; the printed ranges are inputs here"),
        ("Fig. 4", "JCT of serial, pairs and Xonar", "in part", _PAGE + ", seeds 0-49"),
        ("II-B, IV", "share of pairs out of memory", "in part", _PAGE + ", seeds 0-49"),
    ),
}  # fmt: skip


def evaluation(paper: str) -> str:
    """Return the section of a paper's page."""
    rows = [list(row) for row in FIGURES[paper]]
    columns = ["figure or table", "what it shows", "reproduced", "where and inputs, or why not"]
    return f"{_HEADING}\n\n{markdown(columns, rows)}"


def page_of(paper: str) -> Path:
    """Return the page of a paper's results."""
    return FOLDER / f"{paper.lower()}.md"


def main() -> None:
    """Write the section of each page anew, and leave its results as they are."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for paper in FIGURES:
        before, _, rest = page_of(paper).read_text().partition(_HEADING)
        after = rest.partition("\n## ")
        page_of(paper).write_text(before + evaluation(paper) + "\n" + "".join(after[1:]))


if __name__ == "__main__":
    main()
