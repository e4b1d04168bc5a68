"""The page of benchmarks.learning."""

from __future__ import annotations
