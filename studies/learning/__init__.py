"""What wrong predictions cost, and what learning gives back: docs/evidence/results/learning.md."""
