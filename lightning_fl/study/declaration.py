"""Declaration of a study: recipes, overrides, seeds and claims."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.recipe.file import flat_settings
from lightning_fl.study.claims import Claim

#: Default scale: everything declared outside of ``scales``.
FULL = "full"

#: Fields that a written study has in another form, or not at all.
_OTHERS = ("path", "claims", "published", "scales")
#: Settings of a recipe, nested as in its file, or by dotted key as on the command line.
Overrides = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One of the compared methods."""

    recipe: str  #: a file or the name of a shipped recipe; "{AXIS}" is replaced by the value of that axis
    overrides: Overrides = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """A part of the study, or a smaller version of it."""

    seeds: tuple[int, ...] | None = None  #: replace the study's
    arms: tuple[str, ...] | None = None  #: to run; ``None`` for all
    grid: dict[str, tuple[str, ...]] = field(default_factory=dict)  #: axis -> labels; missing axes are run completely
    overrides: Overrides = field(default_factory=dict)  #: of every run; they take precedence over all others


@dataclass(frozen=True)
class TableLayout:
    """Layout of the table: "arm" and axes that form rows and columns, and the statistics in every column."""

    rows: tuple[str, ...] = ("arm",)
    columns: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ("mean", "worst")
    percent: bool = False  #: whether table and claims are in percent
    digits: int = 3  #: after the decimal point

    @property
    def unit(self) -> float:
        """Factor from the metric to the table."""
        return 100.0 if self.percent else 1.0


@dataclass(frozen=True)
class Published:
    """Published results: (row, column, statistic) -> value and spread (``None`` if unknown) in the table's unit."""

    source: str = ""
    values: dict[tuple[str, str, str], tuple[float, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Chosen:
    """A hyperparameter that was tuned before the study, by a metric on training or validation data and other seeds."""

    setting: str
    value: str
    candidates: tuple[str, ...]
    by: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """A study."""

    path: Path
    title: str
    metric: str  #: name in ``summary.json``, without the split
    split: str  #: of the clients' data on which the metric is computed
    seeds: tuple[int, ...]
    arms: dict[str, Arm]
    claims: tuple[Claim, ...] = ()
    grid: dict[str, dict[str, Overrides]] = field(default_factory=dict)  #: axis -> label -> overrides
    cells: tuple[dict[str, Any], ...] = ()  #: arms or labels, and the "overrides" of the cells that match all of them
    exclude: tuple[dict[str, str], ...] = ()  #: arms or labels; cells that match all of an entry are not run
    overrides: Overrides = field(default_factory=dict)
    table: TableLayout = TableLayout()
    published: Published = field(default_factory=Published)
    scales: dict[str, Scale] = field(default_factory=lambda: {FULL: Scale()})
    scale: str = FULL  #: the current one
    chosen: tuple[Chosen, ...] = ()

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def run_seeds(self) -> tuple[int, ...]:
        seeds = self.scales[self.scale].seeds
        return self.seeds if seeds is None else seeds

    @property
    def run_arms(self) -> list[str]:
        chosen = self.scales[self.scale].arms
        return [arm for arm in self.arms if chosen is None or arm in chosen]

    @property
    def run_grid(self) -> dict[str, list[str]]:
        """Axis -> its labels in the current scale."""
        chosen = self.scales[self.scale].grid
        return {
            axis: [label for label in labels if label in chosen.get(axis, labels)] for axis, labels in self.grid.items()
        }

    def places(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Every arm at every place of the grid at the current scale."""
        grid = self.run_grid
        for arm in self.run_arms:
            for labels in itertools.product(*grid.values()):
                place = dict(zip(grid, labels, strict=True))
                if not any({"arm": arm, **place}.items() >= excluded.items() for excluded in self.exclude):
                    yield arm, place

    def layers(self, arm: str, place: Mapping[str, str]) -> list[Overrides]:
        """Overrides of the recipe in increasing precedence: the study's, axes', the arm's, the cell's, the scale's.

        An addition to a list (``trainer.callbacks+``) also applies to a list that a later layer sets, and an argument
        (``trainer.strategy.mu``) to a class that a later layer names.
        """
        of_axes = [self.grid[axis][label] for axis, label in place.items()]
        keys = {"arm": arm, **place}
        own = [one["overrides"] for one in self.cells if all(one.get(key, keys[key]) == keys[key] for key in keys)]
        of_arm, of_scale = self.arms[arm].overrides, self.scales[self.scale].overrides
        layers = list(map(_with_dots, [self.overrides, *of_axes, of_arm, *own, of_scale]))
        kept, moved = [], []
        for number, layer in enumerate(layers):
            replaced = {key: value for later in layers[number + 1 :] for key, value in later.items()}
            paths = [*replaced, *(path for path, _ in flat_settings(replaced))]
            again = tuple(f"{path}.".replace(".init_args.", ".") for path in paths)
            named = tuple(f"{key}." for key, value in replaced.items() if "." in key and isinstance(value, str))
            late = {
                key: value
                for key, value in layer.items()
                if (key.endswith("+") and key[:-1] in replaced)
                or (key.startswith(named) and not _starts_any(again, f"{key}.".replace(".init_args.", ".")))
            }
            kept.append({key: value for key, value in layer.items() if key not in late})
            moved.append(late)
        return [layer for layer in [*kept, *moved] if layer]

    def with_seeds(self, seeds: Sequence[int]) -> "Study":
        if used := [seed for one in self.chosen for seed in one.seeds if seed in seeds]:
            raise ConfigurationError(f"seed {used[0]}: settings of {self.path} were chosen with it; use other seeds.")
        scale = replace(self.scales[self.scale], seeds=tuple(seeds))
        return replace(self, scales={**self.scales, self.scale: scale})

    def as_dict(self) -> dict[str, Any]:
        """Content of a study file that is independent of its folder."""
        published: dict[str, Any] = {}
        for (row, column, statistic), (value, spread) in self.published.values.items():
            cell = published.setdefault(row, {})
            cell = cell.setdefault(column, {}) if self.table.columns else cell
            cell[statistic] = value if spread is None else [value, spread]
        content = {name: value for name, value in asdict(self).items() if name not in _OTHERS}
        content["claims"] = [claim.text for claim in self.claims]
        if self.scale == FULL:
            content["seeds"] = self.run_seeds
        content["scales"] = {
            name: {key: value for key, value in asdict(scale).items() if value is not None}
            for name, scale in self.scales.items()
            if name != FULL
        }
        if published:
            content["published"] = {"source": self.published.source, "values": published}
        return content


def _starts_any(texts: Sequence[str], start: str) -> bool:
    return any(text.startswith(start) for text in texts)


def _with_dots(layer: Overrides) -> Overrides:
    """The layer with dotted keys for what it nests below ``trainer``."""
    nested = layer.get("trainer")
    if not isinstance(nested, dict):
        return layer
    rest = {key: value for key, value in layer.items() if key != "trainer"}
    return {f"trainer.{key}": value for key, value in nested.items()} | rest
