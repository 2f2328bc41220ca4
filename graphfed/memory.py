"""How much memory there is, for what is foretold before it is taken."""

from pathlib import Path

__all__ = ["memory_bytes"]


def memory_bytes() -> tuple[int | None, int | None]:
    """Available and total memory: of the machine, or of the control group where that allows less; None where
    the system does not say."""
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
