"""``lightning-fl export``: a finished run's model as a folder for the Hugging Face Hub, with a card."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.cli.options import add_shared
from lightning_fl.inference.trained_run import TrainedRun

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    add_shared(parser, "run")
    parser.add_argument(
        "--to-folder",
        type=str,
        required=True,
        metavar="DIR",
        help="A new folder for weights, settings and the model card.",
    )
    add_shared(parser, "--model")


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Write the folder and list its files."""
    run = TrainedRun.read(config.run)

    from lightning_fl.inference.export import export_run

    folder = Path(config.to_folder).expanduser()
    files = export_run(run, folder, model=config.model)
    print(f"{folder}: {', '.join(files)}")
    print(f"Read {folder / 'README.md'} before sharing it: it names the clients with their metrics. Then:")
    print(f"  hf upload USER/NAME {folder}")
    return 0
