import sys
from pathlib import Path

# The two processes over TLS that the benchmarks use.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
