"""Measures of memory and cores, for predictions of what a run needs, and the limit of a process."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    A container or a batch system may give it fewer than the machine has.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory() -> int:
    """Return the largest resident memory that this process, or one of its ended children, has had.

    Returns:
        Bytes; 0 on Windows, which does not report it in this way.
    """
    try:
        import resource
    except ModuleNotFoundError:
        return 0
    # ru_maxrss is in bytes on macOS and in kilobytes on Linux.
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


def allowed_memory(given: int) -> int | None:
    """Return how much memory a run of a deployment may take.

    Args:
        given: What the operator of the participant allows, in bytes; 0 for half of what is available now.

    Returns:
        Bytes; None if nothing was given and the system does not report what is available.
    """
    available, _ = memory_bytes()
    return given or (None if available is None else available // 2)


#: The process's own limit, and those of the blocks of `limited_memory` that are running, in any thread. Empty
#: while none is running.
_limits: list[int] = []
_changing = threading.Lock()


@contextmanager
def limited_memory(more: int | None) -> Iterator[None]:
    """Let this process allocate only so much more memory in a block; more fails as on a full machine.

    The limit is that of the process. While several threads are in such blocks, the lowest one holds for all.

    Args:
        more: Bytes, in addition to what the process has allocated at the start; None for no limit.

    Yields:
        Nothing. On systems other than Linux there is no limit.
    """
    status = Path("/proc/self/status")
    if more is None or not status.exists():
        yield
        return
    import resource  # only Linux has the file above

    # RLIMIT_DATA bounds the private memory of the process, which VmData measures.
    present = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    limit = int(present.split()[1]) * 1024 + more

    with _changing:
        own, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if not _limits:
            _limits.append(own)
        _limits.append(limit)
        _set_lowest(hard)
    try:
        yield
    finally:
        with _changing:
            _limits.remove(limit)
            _set_lowest(hard)
            if len(_limits) == 1:
                _limits.clear()


def _set_lowest(hard: int) -> None:
    import resource

    lowest = min((x for x in _limits if x != resource.RLIM_INFINITY), default=resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (lowest, hard))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an exception, or one of its causes, says that memory could not be allocated."""
    # Wrappers hide the first error, so the causes are searched too.
    while error is not None:
        # torch has an error of its own for accelerators, and raises RuntimeError for the CPU.
        of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
        if isinstance(error, MemoryError) or of_torch:
            return True
        error = error.__cause__ or error.__context__
    return False
