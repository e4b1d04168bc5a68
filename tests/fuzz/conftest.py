import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [
    str(TESTS / name)
    for name in ("fuzz", "webhook", "extender", "queue", "node_agent", "predictor", "contracts")
]
