from pathlib import Path

import pytest
from momenta import Momenta, MomentaFigure
from trial import Parabolas, train, weights_of

from lightning_fl import ConfigurationError
from lightning_fl.callbacks import Figures

CURVES = ((10, 1.0, 2.0), (30, 3.0, -1.0))


def by_hand(client: float, server: float, rounds: int) -> float:
    """The method in plain numbers: two steps of 0.1 at each of two clients."""
    shared, last, changes = 1.0, 0.0, [0.0, 0.0]
    for _ in range(rounds):
        learned = []
        for i, (_, curvature, centre) in enumerate(CURVES):
            w = shared
            for _ in range(2):
                w -= 0.1 * (curvature * (w - centre) - client * changes[i])
            changes[i] = w - shared
            learned.append(w)
        last = (10 * learned[0] + 30 * learned[1]) / 40 - shared + server * last
        shared += last
    return shared


@pytest.mark.parametrize(("client", "server"), [(0.3, 0.0), (0.0, 0.6), (0.3, 0.6)])
def test_against_the_method_in_plain_numbers(client: float, server: float, tmp_path: Path) -> None:
    trainer = train(Parabolas(*CURVES), rounds=4, root=tmp_path, strategy=Momenta(client, server))
    assert weights_of(trainer) == [pytest.approx(by_hand(client, server, 4), rel=1e-10)]


def test_a_resumed_run_has_the_same_bits_and_the_whole_picture(tmp_path: Path) -> None:
    def run(
        folder: str, rounds: int, ckpt_path: str | None = None
    ) -> tuple[list[float], list[dict[str, float | None]]]:
        figure = MomentaFigure()
        callbacks, root = (Figures(), figure), tmp_path / folder
        strategy = Momenta()
        trainer = train(
            Parabolas(*CURVES), *callbacks, rounds=rounds, root=root, strategy=strategy, ckpt_path=ckpt_path
        )
        assert Path(trainer.log_dir, "figures", "momenta.png").is_file()
        return weights_of(trainer), figure.rows

    run("part", 2)
    resumed, whole = run("part", 5, "last"), run("whole", 5)
    assert resumed == whole
    assert len(whole[1]) == 5


def test_a_wrong_share_is_named() -> None:
    with pytest.raises(ConfigurationError, match="Momenta.server=2"):
        Momenta(server=2)


def test_the_figure_needs_the_strategy(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="MomentaFigure needs trainer.strategy=Momenta"):
        train(Parabolas(*CURVES), MomentaFigure(), rounds=1, root=tmp_path)
