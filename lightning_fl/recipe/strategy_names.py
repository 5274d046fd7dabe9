"""Strategies with arguments in recipes, by the names under which they are registered with Fabric."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_fl.recipe.settings import collect_settings

__all__ = ["with_strategy_class", "with_strategy_class_before_its_arguments"]

_KEY = "--trainer.strategy"


def with_strategy_class(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the import path of the strategy's class where its ``class_path`` is a registered name."""
    trainer = settings.get("trainer")
    entry = trainer.get("strategy") if isinstance(trainer, Mapping) else None
    if not isinstance(trainer, Mapping) or not isinstance(entry, Mapping):
        return settings
    given = entry.get("init_args") or {}
    found = _registered(entry.get("class_path"))
    if found is None or not isinstance(given, Mapping):
        return settings
    class_path, arguments = found
    init_args = {**arguments, **given}
    return {**settings, "trainer": {**trainer, "strategy": {"class_path": class_path, "init_args": init_args}}}


def with_strategy_class_before_its_arguments(words: Sequence[str]) -> list[str]:
    """Words of a command line with the strategy's import path before ``--trainer.strategy.NAME``, where it has a name.

    The parser knows the arguments of a class, not of a name.
    """
    words = list(words)
    place = next((i for i, word in enumerate(words) if word.startswith(f"{_KEY}.") and "help" not in word), None)
    if place is None or words[place].startswith(f"{_KEY}.class_path"):
        return words
    trainer = collect_settings(words[:place]).get("trainer")
    found = _registered(trainer.get("strategy", "fedavg") if isinstance(trainer, Mapping) else "fedavg")
    if found is None:
        return words
    class_path, arguments = found
    given = [f"{_KEY}.{name}={value}" for name, value in arguments.items()]
    return [*words[:place], f"{_KEY}={class_path}", *given, *words[place:]]


def _registered(name: object) -> tuple[str, dict[str, Any]] | None:
    """A registered strategy's import path and the arguments that its name stands for."""
    from lightning.fabric.strategies import STRATEGY_REGISTRY

    from lightning_fl.strategies import FederatedStrategy

    if not isinstance(name, str) or name.lower() not in STRATEGY_REGISTRY:
        return None
    entry = STRATEGY_REGISTRY[name.lower()]
    kind = entry["strategy"]
    if not (isinstance(kind, type) and issubclass(kind, FederatedStrategy)):
        return None
    return f"{kind.__module__}.{kind.__qualname__}", dict(entry["init_params"])
