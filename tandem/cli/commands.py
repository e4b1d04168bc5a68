"""What each command is for, and which extra has what it imports beyond the base installation.

`tandem --help` and the shell's completion of names read this table and load no command; a command
that is not in it, of another package, is loaded for its own words.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """The first sentence of a command's help, and the extra that it needs ('' for none)."""

    summary: str
    extra: str = ""


COMMANDS = {
    "config": Command("The extender's configuration.", "extender"),
    "controlplane": Command("A real Kubernetes control plane as processes on loopback.", "run"),
    "demo": Command(
        "Run twelve jobs on simulated GPUs through the real extender, predictor and node agents.",
        "run",
    ),
    "doctor": Command(
        "Say what is wrong with Tandem in a cluster and what to do; exit code 1 if anything is."
    ),
    "explain": Command("Say where a pod is, or what keeps it off each node."),
    "gpus": Command("List GPUs, what holds them and what is promised of them."),
    "hold": Command("Keep a job from being started; one that runs goes on."),
    "jobs": Command("List jobs: where they are in the queue, where they run, and why they wait."),
    "model": Command("Push, list, show and delete model graphs."),
    "page": Command("Show the status page in a browser, until Ctrl+C."),
    "predict": Command("Predict what a training job would use of a GPU.", "predictor"),
    "prioritize": Command("Move a job to the front, behind those that were moved there before it."),
    "profile": Command("Measure what training jobs use of this machine's GPU.", "profile"),
    "queue": Command(
        "List the jobs that wait, the next first: when they will start, and why not now."
    ),
    "quotas": Command(
        "List namespaces with what they hold of their quota; those over it come first."
    ),
    "resume": Command("Let a held job be started again."),
    "sharing": Command(
        "Say whether sharing pays: what it is worth in GPUs, and whom it slows down most."
    ),
    "simulate": Command(
        "Replay a trace of jobs on a simulated cluster, under one profile or several.", "simulator"
    ),
    "top": Command("Show GPUs, what runs on them, and the queue, live; q ends it."),
    "train": Command("Train the predictor's models on measurements.", "train"),
    "why": Command(
        "Say all about a job: why it waits, when it starts, what slows it down, why it was stopped."
    ),
}
