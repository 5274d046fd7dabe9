"""A study: which recipes, changed how, over which seeds, and what is claimed of them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning_fl.study.claims import Claim

__all__ = ["FULL", "Arm", "Chosen", "Overrides", "Published", "Scale", "Study", "TableLayout"]

#: The scale at which a study is run if no other is named: all that is declared outside of ``scales``.
FULL = "full"

#: Settings of a recipe, nested as in its file, or by dotted key as on the command line.
Overrides = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One of the things compared.

    Args:
        recipe: the file, or the name of a shipped recipe; "{AXIS}" in it stands for the value of that axis.
        overrides: what it changes of the recipe.
    """

    recipe: str
    overrides: Overrides = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """A part of the study, or a smaller form of it.

    Args:
        seeds: instead of the study's; ``None`` for the same.
        arms: those that are run; ``None`` for all.
        grid: axis -> the labels that are run; all of an axis that is not named.
        overrides: settings of every run, over all others.
    """

    seeds: tuple[int, ...] | None = None
    arms: tuple[str, ...] | None = None
    grid: dict[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=dict)


@dataclass(frozen=True)
class TableLayout:
    """How the table is laid out.

    Args:
        rows: "arm" and axes that make the rows.
        columns: the others.
        statistics: shown side by side in every column.
        percent: whether everything is shown, and claimed, times a hundred.
        digits: after the decimal point.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    statistics: tuple[str, ...]
    percent: bool = False
    digits: int = 3


@dataclass(frozen=True)
class Published:
    """Figures that were published, in the unit of the table.

    Args:
        source: where.
        values: (row, column, statistic) -> the value and its spread, or ``None`` where none was given.
    """

    source: str = ""
    values: dict[tuple[str, str, str], tuple[float, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Chosen:
    """How a setting of the study's runs was chosen, which no run of the study takes part in.

    Args:
        setting: what was set, and of which arms.
        value: what to.
        candidates: what it was chosen from.
        by: the metric that chose, of training or validation data.
        seeds: of the runs that chose; none of the study's.
    """

    setting: str
    value: str
    candidates: tuple[str, ...]
    by: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """A study.

    Args:
        path: the file it was read from.
        title: above the table.
        metric: by its name in ``summary.json``, without the split.
        split: of the clients' data that it is taken of.
        seeds: one run of every cell for each.
        arms: name -> arm.
        grid: axis -> label -> the overrides that it stands for.
        exclude: what is not run: each of these names an arm or labels, and all cells that have all of them are out.
        overrides: of every run.
        table: its layout.
        published: figures to show beside.
        claims: what is said of the results.
        scales: name -> scale, "full" among them.
        scale: the one that is run.
        chosen: how its settings were.
    """

    path: Path
    title: str
    metric: str
    split: str
    seeds: tuple[int, ...]
    arms: dict[str, Arm]
    grid: dict[str, dict[str, Overrides]]
    exclude: tuple[dict[str, str], ...]
    overrides: Overrides
    table: TableLayout
    published: Published
    claims: tuple[Claim, ...]
    scales: dict[str, Scale]
    scale: str = FULL
    chosen: tuple[Chosen, ...] = ()

    @property
    def name(self) -> str:
        """The file's, without its ending."""
        return self.path.stem

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """The seeds of the scale."""
        seeds = self.scales[self.scale].seeds
        return self.seeds if seeds is None else seeds

    @property
    def run_arms(self) -> list[str]:
        """The arms of the scale."""
        chosen = self.scales[self.scale].arms
        return [arm for arm in self.arms if chosen is None or arm in chosen]

    @property
    def run_grid(self) -> dict[str, list[str]]:
        """Axis -> its labels in the scale."""
        chosen = self.scales[self.scale].grid
        return {
            axis: [label for label in labels if label in chosen.get(axis, labels)] for axis, labels in self.grid.items()
        }

    def places(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Every arm at every place of the grid that is run at this scale."""
        grid = self.run_grid
        for arm in self.run_arms:
            for labels in itertools.product(*grid.values()):
                place = dict(zip(grid, labels, strict=True))
                if not any({"arm": arm, **place}.items() >= excluded.items() for excluded in self.exclude):
                    yield arm, place

    def layers(self, arm: str, place: Mapping[str, str]) -> list[Overrides]:
        """What changes the recipe, the later over the earlier: the study's, each axis's, the arm's, the scale's.

        What an axis adds to a list (``trainer.callbacks+``) is added to the one that a later layer gives in its place.
        """
        of_axes = [self.grid[axis][label] for axis, label in place.items()]
        layers = [self.overrides, *of_axes, self.arms[arm].overrides, self.scales[self.scale].overrides]
        return [layer for layer in _additions_last(layers) if layer]

    def with_seeds(self, seeds: Sequence[int]) -> "Study":
        """The same with other seeds."""
        scale = replace(self.scales[self.scale], seeds=tuple(seeds))
        return replace(self, scales={**self.scales, self.scale: scale})

    def as_dict(self) -> dict[str, Any]:
        """The content of a file that is read as this study, in any folder."""
        recipes = {name: {"recipe": arm.recipe, "overrides": arm.overrides} for name, arm in self.arms.items()}
        published: dict[str, Any] = {}
        for (row, column, statistic), (value, spread) in self.published.values.items():
            cell = published.setdefault(row, {})
            cell = cell.setdefault(column, {}) if self.table.columns else cell
            cell[statistic] = value if spread is None else [value, spread]
        content: dict[str, Any] = {
            "title": self.title,
            "scale": self.scale,
            "metric": self.metric,
            "split": self.split,
            "seeds": list(self.seeds),
            "overrides": self.overrides,
            "arms": recipes,
            "grid": self.grid,
            "exclude": list(self.exclude),
            "table": {
                "rows": list(self.table.rows),
                "columns": list(self.table.columns),
                "statistics": list(self.table.statistics),
                "percent": self.table.percent,
                "digits": self.table.digits,
            },
            "claims": [claim.text for claim in self.claims],
            "scales": {name: _scale_dict(scale) for name, scale in self.scales.items() if scale != Scale()},
        }
        if self.chosen:
            content["chosen"] = [
                asdict(one) | {"candidates": list(one.candidates), "seeds": list(one.seeds)} for one in self.chosen
            ]
        if published:
            content["published"] = {"source": self.published.source, "values": published}
        return content


def _scale_dict(scale: Scale) -> dict[str, Any]:
    content: dict[str, Any] = {"overrides": scale.overrides} if scale.overrides else {}
    content |= {"seeds": list(scale.seeds)} if scale.seeds is not None else {}
    content |= {"arms": list(scale.arms)} if scale.arms is not None else {}
    content |= {"grid": {axis: list(labels) for axis, labels in scale.grid.items()}} if scale.grid else {}
    return content


def _additions_last(layers: Sequence[Overrides]) -> list[Overrides]:
    """Layers in which no addition to a list (a dotted key with a "+") comes before what replaces that list."""
    kept, moved = [], []
    for number, layer in enumerate(layers):
        replaced = {key for later in layers[number + 1 :] for key in later}
        late = {key: value for key, value in layer.items() if key.endswith("+") and key[:-1] in replaced}
        kept.append({key: value for key, value in layer.items() if key not in late})
        moved.append(late)
    return [*kept, *moved]
