"""``lightning-fl show``, ``explain`` and ``export``: a finished run as a page, a picture, a folder for the Hub."""

import io
import shlex
import sys
import webbrowser
from typing import Any

from lightning_fl.cli.options import File, Folder, Run
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.files.atomic import write_whole
from lightning_fl.inference.trained_run import TrainedRun, check_out


def show(run: Run, *, out: File | None = None, open: bool = False) -> int:
    """Write a run's page and print its path. Does not import torch.

    Args:
        run: folder of a finished run, or of versions of a run (the last finished one is used)
        out: the page (default: report.html in the run's folder)
        open: open the page in a browser
    """
    from lightning_fl.study.html_pages import write_run_page

    if out is not None:
        if not out.parent.is_dir():
            raise ConfigurationError(f"--out {out}: there is no folder {out.parent}.")
        check_out(out, run, named=True, replace=True)
    path = write_run_page(run, out)
    print(f"report: {path}")
    if open:
        webbrowser.open(path.resolve().as_uri())
    return 0


def export(run: Run, *, to_folder: Folder, model: str | None = None) -> int:
    """Write a run's model as a folder for the Hugging Face Hub and list its files.

    Args:
        to_folder: a new folder for weights, settings and the model card
    """
    trained = TrainedRun.read(run)

    from lightning_fl.inference.export import export_run

    print(f"{to_folder}: {', '.join(export_run(trained, to_folder, model=model))}")
    print(f"Read {to_folder / 'README.md'} before sharing it: it names the clients with their metrics. Then:")
    print(f"  hf upload USER/NAME {shlex.quote(str(to_folder))}")
    return 0


def explain(
    run: Run,
    smiles: str,
    *,
    out: File,
    target: str | None = None,
    target_class: int = 1,
    force: bool = False,
    model: str | None = None,
    trust: bool = False,
) -> int:
    """Draw the contributions of a molecule's atoms to a run's prediction, and print a line for each atom.

    Args:
        smiles: the molecule
        out: figure: .png, .svg or .pdf
        target: name of the target (default: the first)
        target_class: the explained class, if there are several
    """
    kind = out.suffix.removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise ConfigurationError(f"--out {out}: give a name that ends in .png, .svg or .pdf.")
    check_out(out, run, named=True, replace=force)
    if model in ("all", "snapshots"):
        raise ConfigurationError(f"--model {model}: one model is explained at a time; name it.")
    trained = TrainedRun.read(run)

    from lightning_fl.inference.explanation import draw_explanation, explain
    from lightning_fl.inference.models import choose_models, load_models

    (loaded,), _ = load_models(trained, choose_models(trained, model), trust=trust, accelerator="cpu")
    kept = [trained.summary["data"].get(key) for key in ("target_names", "target_units")]
    names, units = (value if isinstance(value, list) else None for value in kept)  # dicts of private targets
    module: Any = loaded.module  # another than a MoleculeModel is refused there
    found = explain(module, smiles, target=target or 0, target_class=target_class, names=names, units=units)
    content = io.BytesIO()
    draw_explanation(found).savefig(content, format=kind)
    write_whole(out, content.getvalue())
    unit = f" {found.unit}" if found.unit else ""
    print(f"{found.target}: {found.prediction:.4g}{unit} by {loaded.name}; {found.baseline:.4g} without atom features")
    for place, value in enumerate(found.atoms.tolist()):
        print(f"atom {place}: {value:+.4g}")
    print(f"picture: {out}", file=sys.stderr)
    return 0
