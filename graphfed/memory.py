"""Measures of memory, for predictions of what a run needs."""

import sys
from pathlib import Path

__all__ = ["memory_bytes", "peak_memory"]


def peak_memory() -> int:
    """Return the largest resident memory that this process, or one of its ended children, has had.

    Returns:
        Bytes.
    """
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return max(peaks) * unit


def memory_bytes() -> tuple[int | None, int | None]:
    """Return the available and the total memory of the machine, or of the control group if that allows less.

    Returns:
        Bytes available and in total; (None, None) if the system does not report them.
    """
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available, total = (int(lines[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    except (OSError, ValueError, KeyError, IndexError):
        return None, None
    try:
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        left = limit - int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return available, total
    return max(0, min(available, left)), min(total, limit)
