"""The purpose of each command, and the extra that has its imports beyond the base installation.

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
        "Run twelve jobs on simulated GPUs through the real services.",
        "run",
    ),
    "doctor": Command("Say what is wrong with Tandem in a cluster, and what to do."),
    "explain": Command("Say where a pod is, or what keeps it off each node."),
    "gpus": Command("List GPUs, what holds them and what is promised of them."),
    "hold": Command("Keep a job from being started; one that runs goes on."),
    "jobs": Command("List jobs: where they run, or why they wait."),
    "model": Command("Push, list, show and delete model graphs."),
    "page": Command("Show the status page in a browser, until Ctrl+C."),
    "predict": Command("Predict what a training job would use of a GPU.", "predictor"),
    "prioritize": Command("Move a job to the front of the queue."),
    "profile": Command("Measure what training jobs use of this machine's GPU.", "profile"),
    "queue": Command("List the jobs that wait: when they start, and why not now."),
    "quotas": Command("List namespaces with what they hold of their quota."),
    "report": Command("Show what jobs had of GPUs, and what sharing saved."),
    "resume": Command("Let a held job be started again."),
    "sharing": Command("Say whether sharing pays, and whom it slows down most."),
    "simulate": Command("Replay a trace of jobs on a simulated cluster.", "simulator"),
    "top": Command("Show GPUs, what runs on them, and the queue, live."),
    "train": Command("Train the predictor's models on measurements.", "train"),
    "what-if": Command("Say when a job would start if it asked for something else."),
    "why": Command("Say why a job waits, when it starts, and what slows it down."),
}
