"""Peak memory of this process since a moment of our choosing, where the system can tell."""

from __future__ import annotations

import resource
from pathlib import Path

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def reset_peak() -> None:
    """Forget the peak so far; does nothing where the system keeps only one for the process's lifetime."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return


def peak_bytes() -> int:
    """Most memory held since `reset_peak`, or since the start."""
    try:
        lines = STATUS.read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
