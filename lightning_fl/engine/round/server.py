"""Server step: the next shared model from the average."""

from collections.abc import Mapping

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import packed
from lightning_fl.engine.federation import IDENTITY
from lightning_fl.engine.learner import Contribution, ModelUpdate
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Weights

__all__ = ["next_model"]


def next_model(
    loop: LocalLoop,
    model: int,
    start: Weights,
    average: Weights,
    contributions: list[Contribution],
    vectors: Mapping[str, Weights],
) -> Weights:
    """Apply the strategy's server step to an average, with the server's state of the model.

    Args:
        loop: of the run.
        model: number of the shared model.
        start: the model before the round.
        average: of the clients' updates.
        contributions: of the clients.
        vectors: averages of the strategy's further vectors.

    Raises:
        ConfigurationError: the strategy returns no weights.
    """
    federation = loop.federation
    state = {name: value for name, value in federation.model_states.get(model, {}).items() if name != IDENTITY}
    spans, shares = loop.averaged_spans(), federation.shares(model)
    update = ModelUpdate(
        model, start, average, vectors, contributions, loop.processes.num_clients, spans, state, shares
    )
    result = loop.learner.aggregate(update)
    if not isinstance(result, Weights):
        raise ConfigurationError(
            f"{type(loop.learner).__name__}.aggregate returned {type(result).__name__}: return the next shared model,"
            " such as update.average."
        )
    if update.state:
        packed(update.state)  # raises if a checkpoint could not hold it
        federation.model_states[model] = {**update.state, IDENTITY: federation.identities()[model]}
    return result
