"""Versions, commit and machine. Imports nothing heavy."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightning_fl.version import __version__

_PACKAGES = ("torch", "lightning", "torchmetrics", "torch-geometric", "rdkit", "numpy", "scipy", "scikit-learn")


def describe_environment() -> dict[str, Any]:
    """Versions and machine as strings and numbers."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "lightning-fl": __version__,
        "commit": package_commit(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": usable_cores(),
    }


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide results."""
    return {package: version(package) for package in _PACKAGES}


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def package_commit() -> str:
    """Commit of the package's git checkout, with "+" if it has changes; empty without one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    return f"{commit}+" if commit and _git(root, "status", "--porcelain", "--untracked-files=no") else commit


def _git(root: Path, *words: str) -> str:
    try:
        result = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
