"""What wrong predictions cost, and what of it learning gives back: docs/results/learning.md."""
