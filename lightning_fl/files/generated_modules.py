"""Cleanup of modules that PyG generates in the temporary folder for message passing layers."""

import atexit
import contextlib
import linecache
import os
import sys
import tempfile
from pathlib import Path

#: Endings of their names.
_ENDINGS = ("_propagate", "_edge_updater")


def remove_generated_files() -> None:
    """Remove the files of loaded modules; their lines stay cached for tracebacks and TorchScript."""
    # Not gettempdir(): a signal may have interrupted it while it holds its lock. PyG has set the variable.
    if "torch_geometric" not in sys.modules or tempfile.tempdir is None:
        return
    folder = Path(os.fsdecode(tempfile.tempdir))
    for module in [module for name, module in sys.modules.items() if name.endswith(_ENDINGS)]:
        file = getattr(module, "__file__", None)
        if file is None or Path(file).parent != folder or file in linecache.cache:
            continue
        lines = linecache.getlines(file)
        # Without a modification time, so that linecache keeps them after the file is gone.
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
        for path in filter(None, (file, getattr(module, "__cached__", None))):
            Path(path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # missing, or used by others
            (folder / "__pycache__").rmdir()


# Catches modules that are constructed but never run.
atexit.register(remove_generated_files)
