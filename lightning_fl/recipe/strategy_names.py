"""Strategies with arguments in recipes, by the names under which they are registered with Fabric."""

from collections.abc import Mapping
from typing import Any

from lightning_fl.recipe.classes import registered_strategy

__all__ = ["with_strategy_class"]


def with_strategy_class(settings: dict[str, Any]) -> dict[str, Any]:
    """Replace a registered name as the strategy's ``class_path`` by its import path and the arguments it implies.

    Arguments without a class are those of ``fedavg``.
    """
    from lightning_fl.strategies import FederatedStrategy

    trainer = settings.get("trainer")
    entry = trainer.get("strategy") if isinstance(trainer, Mapping) else None
    if not isinstance(trainer, Mapping) or not isinstance(entry, Mapping):
        return settings
    given = entry.get("init_args") or {}
    found = registered_strategy(entry.get("class_path", "fedavg"), [FederatedStrategy])
    if found is None or not isinstance(given, Mapping):
        return settings
    kind, implied = found
    strategy = {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": {**implied, **given}}
    return {**settings, "trainer": {**trainer, "strategy": strategy}}
