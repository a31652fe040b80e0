"""Where a number comes from."""

from __future__ import annotations

import contextlib
import functools
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from samphire.pool import cores

__all__ = ["provenance"]


def provenance() -> dict[str, Any]:
    """Where a number comes from: versions, commit, machine, threads and time.

    Example:
        >>> sorted(provenance())
        ['commit', 'cores', 'cpu', 'numpy', 'platform', 'python', 'samphire', 'threads', 'time', 'torch']
    """
    return {
        "samphire": _version("samphire"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": cores(),
        "threads": _threads(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _commit() -> str | None:
    """The commit of this source file, with a ``+`` if tracked files have changed; None if git does not know it."""
    here = Path(__file__)
    git: Callable[..., str] = lambda *args: subprocess.run(
        ["git", "-C", str(here.parent), *args], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _threads() -> int:
    """The threads of PyTorch if it is loaded, else the cores."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else cores()
