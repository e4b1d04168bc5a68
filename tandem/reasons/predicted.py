"""The prediction for a job in words: the same in commands and in decisions of a GPUJob."""

from __future__ import annotations

#: The source of a figure where nothing is known of the job.
_NOTHING = "whole-gpu"


def predicted_in_words(
    memory_gib: float, memory_source: str, utilisation_percent: float, utilisation_source: str
) -> str:
    """Return what is predicted of a job on each of its GPUs, and where each figure is from."""
    memory = f"{memory_gib:.1f} GiB at most ({memory_source})"
    use = f"{utilisation_percent:.0f} % utilisation ({utilisation_source})"
    if memory_source == _NOTHING:  # its memory is 0 where the size of the GPU is not known
        memory = "the memory of a whole GPU (nothing is known of the job's)"
    if utilisation_source == _NOTHING:
        use = f"{utilisation_percent:.0f} % utilisation (assumed)"
    return f"{memory}, {use}"
