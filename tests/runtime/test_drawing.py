"""A picture that fails is one warning, and names are shown as they are."""

import warnings

import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure

from lightning_fl.runtime.drawing import drawing


def figure_of(text: str) -> Figure:
    figure = Figure()
    figure.suptitle(text)
    return figure


@pytest.mark.parametrize("text", [r"$\foo$", "a$b", r"$$", "$x_{$"])
def test_a_name_with_dollars_is_no_formula(text, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with drawing("gain"):
            figure = figure_of(text)
            figure.savefig(tmp_path / "gain.png")
    assert figure.get_suptitle() == text
    assert (tmp_path / "gain.png").stat().st_size
    assert rcParams["text.parse_math"] is True


def test_what_fails_is_said_once_and_what_follows_goes_on():
    with pytest.warns(UserWarning, match="gain") as said, drawing("gain"):
        raise ValueError("image size of 1e6 pixels\nis too large")
    assert [str(one.message) for one in said] == [
        "the picture gain was not drawn, and nothing else is lost: ValueError: image size of 1e6 pixels is too large"
    ]


def test_a_full_disk_is_named(tmp_path):
    with pytest.warns(UserWarning, match="gain was not drawn, .* No space left on device"), drawing("gain"):
        figure_of("a").savefig("/dev/full", format="png")


def test_letters_that_the_font_lacks_are_counted_in_one_line(tmp_path):
    with pytest.warns(UserWarning, match="lacks") as said, drawing("gain"):
        figure_of("甲乙甲").savefig(tmp_path / "gain.png")
    assert [str(one.message) for one in said] == [
        "the font lacks 2 letters of names in the picture gain; boxes replace them."
    ]


def test_other_warnings_and_signals_pass():
    with pytest.warns(UserWarning, match="mine"), drawing("gain"):
        warnings.warn("mine", stacklevel=1)
    with pytest.raises(KeyboardInterrupt), drawing("gain"):
        raise KeyboardInterrupt
