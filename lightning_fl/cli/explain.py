"""``lightning-fl explain``: contributions of a molecule's atoms to a finished run's prediction."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.cli.options import add_shared
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.atomic import write_whole
from lightning_fl.inference.trained_run import TrainedRun, check_out

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    add_shared(parser, "run")
    parser.add_argument("smiles", type=str, help="The molecule.")
    parser.add_argument("--out", type=str, required=True, metavar="FILE", help="Figure: .png, .svg or .pdf.")
    parser.add_argument("--target", type=str | None, default=None, help="Name of the target (default: the first).")
    parser.add_argument("--target_class", type=int, default=1, help="The explained class, if there are several.")
    add_shared(parser, "--force", "--model", "--trust")


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Explain, draw, print a line for each atom."""
    out = Path(config.out).expanduser()
    kind = out.suffix.removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise ConfigurationError(f"--out {config.out}: give a name that ends in .png, .svg or .pdf.")
    check_out(out, Path(config.run).expanduser(), named=True, replace=config.force)
    if config.model == "all":
        raise ConfigurationError("--model all: one model is explained at a time; name it.")
    trained = TrainedRun.read(config.run)

    from lightning_fl.inference.explanation import draw_explanation, explain
    from lightning_fl.inference.models import choose_models, load_models

    (model,), _ = load_models(trained, choose_models(trained, config.model), trust=config.trust, accelerator="cpu")
    with trained.reading_record() as record:
        names, units = record["target_names"], record["target_units"]
    found = explain(
        model.module,  # type: ignore[arg-type]  # another module is refused there
        config.smiles,
        target=names[0] if config.target is None else config.target,
        target_class=config.target_class,
        names=names,
        units=units,
    )
    content = io.BytesIO()
    draw_explanation(found).savefig(content, format=kind)
    write_whole(out, content.getvalue())
    unit = f" {found.unit}" if found.unit else ""
    print(f"{found.target}: {found.prediction:.4g}{unit} by {model.name}; {found.baseline:.4g} without atom features")
    for place, value in enumerate(found.atoms.tolist()):
        print(f"atom {place}: {value:+.4g}")
    print(f"picture: {out}", file=sys.stderr)
    return 0
