"""Virtual environments of the peers, made once with uv, all with the torch that this project runs on."""

import hashlib
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

DEFAULT_FOLDER = Path.home() / ".cache" / "lightning-fl-bench"

#: Peer: its own packages, and those of the project that its arms need at the project's versions.
PEERS: dict[str, tuple[list[str], list[str]]] = {
    "flower": (["flwr[simulation]==1.42.0"], ["torch", "torchvision", "lightning", "torch-geometric"]),
    "pfl": (["pfl[pytorch]==0.6.0"], ["torch", "torchvision"]),
}
#: Flower asks for a certifi that may be newer than a mirror's; nothing here opens a connection.
_OVERRIDES = "certifi>=2025.1\n"


class EnvironmentFailure(RuntimeError):
    """A peer could not be installed; the message is uv's."""


def peer_python(peer: str, folder: Path) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there yet.

    Raises:
        EnvironmentFailure: uv is missing, or did not succeed.
    """
    own, shared = PEERS[peer]
    requirements = own + [f"{name}=={version(name).partition('+')[0]}" for name in shared]
    key = hashlib.sha256("\n".join([platform.python_version(), _OVERRIDES, *requirements]).encode()).hexdigest()[:8]
    place = folder / f"{peer}-{key}"
    python, ready = place / "bin" / "python", place / "ready"
    if ready.exists():
        return python
    uv = shutil.which("uv")
    if uv is None:
        raise EnvironmentFailure("uv is not on the path: https://docs.astral.sh/uv")
    print(f"making {place}: {' '.join(requirements)}", flush=True)
    _run([uv, "venv", "--clear", "--python", platform.python_version(), str(place)])
    overrides = place / "overrides.txt"
    overrides.write_text(_OVERRIDES)
    _run([uv, "pip", "install", "--python", str(python), "--override", str(overrides), *requirements])
    ready.touch()
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EnvironmentFailure(f"{' '.join(command[:3])}: {done.stderr.strip()}")
