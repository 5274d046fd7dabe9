"""Normalising flows."""

from typing import Any

from harness import case

from public.lit import Lit, load_into, split_loaders, tensors


@case("neural spline flow", "zuko", wraps=True)
def zuko_flow() -> dict[str, Any]:
    import zuko

    def loss(net: Any, batch: Any) -> Any:
        x, context = batch
        return -net(context).log_prob(x).mean()

    def make() -> Any:
        return Lit(zuko.flows.NSF(features=3, context=2, transforms=2, hidden_features=(8, 8)), loss)

    return {"make": make, "loaders": lambda silo: split_loaders(tensors(silo, (3,), (2,))), "load": load_into}
