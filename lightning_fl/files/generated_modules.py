"""Files of code that PyG writes into the temporary folder for every kind of message passing layer, and leaves there."""

import atexit
import contextlib
import linecache
import sys
import tempfile
from pathlib import Path

__all__ = ["remove_generated_files"]

#: The names of such modules end with these.
_ENDINGS = ("_propagate", "_edge_updater")


def remove_generated_files() -> None:
    """Remove the files of those modules that are loaded; their lines stay known, for tracebacks and TorchScript."""
    if "torch_geometric" not in sys.modules:
        return
    folder = Path(tempfile.gettempdir())
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not name.endswith(_ENDINGS) or file is None or Path(file).parent != folder or file in linecache.cache:
            continue
        lines = linecache.getlines(file)
        # No time of change: linecache would drop them once the file is gone.
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
        for path in filter(None, (file, getattr(module, "__cached__", None))):
            Path(path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it was not made, or others have something there
            (folder / "__pycache__").rmdir()


# What is constructed and never run.
atexit.register(remove_generated_files)
