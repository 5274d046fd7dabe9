"""Numbers that a user sets: whether each is one, finite and in its range, said with the owner's and the option's name.

A comparison alone lets NaN pass: ``nan < 0`` is false. Constructors therefore check what they are given here::

    check_numbers(self, std=std, at_least=0)
    check_counts(self, num_clusters=num_clusters)
"""

import math
from collections.abc import Iterator, Mapping
from numbers import Integral, Real

from lightning_fl.core.errors import ConfigurationError, cut

__all__ = ["check_counts", "check_numbers", "warn_beyond_end"]

#: Beyond it no count means anything, and torch's sizes overflow.
_MOST = 2**31 - 1


def check_numbers(
    owner: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    mend: str = "",
    **options: object,
) -> None:
    """Refuse what is no finite number of a range.

    Args:
        owner: whose options they are: an object, for its class's name, or the name itself; "" for nobody.
        at_least: the range's beginning.
        above: the same, itself not allowed.
        at_most: the range's end.
        below: the same, itself not allowed.
        mend: what else is to be said of the right values, after the range.
        options: name -> value, or several in a list or dict; ``None`` is an option that is not set.

    Raises:
        ConfigurationError: of the first that is not: "LabelNoise.std=nan: give a finite number of at least 0."
    """
    for name, value in _each(options):
        number = _as_float(value)
        if number is None:
            kind = "number"
        elif not math.isfinite(number):
            kind = "finite number"
        elif _inside(number, at_least, above, at_most, below):
            continue
        else:
            kind = "number"
        raise _refusal(owner, name, value, f"{kind}{_range(at_least, above, at_most, below)}{mend}")


def warn_beyond_end(owner: object, max_rounds: int, **options: object) -> None:
    """Warn of options that name a round which the run does not reach: what they stand for will not happen.

    Args:
        owner: as for :func:`check_numbers`.
        max_rounds: rounds of the run.
        options: name -> rounds, or several in a list or dict; ``None`` is an option that is not set.
    """
    from lightning.fabric.utilities.rank_zero import rank_zero_warn

    whose = owner if isinstance(owner, str) else type(owner).__name__
    for name, value in _each(options):
        if isinstance(value, int) and value > max_rounds:
            rank_zero_warn(
                f"{whose}.{name}={value} is beyond the end of the run, trainer.max_rounds={max_rounds}: it will not"
                " come to that."
            )


def check_counts(
    owner: object, *, at_least: int = 1, at_most: int | None = None, mend: str = "", **options: object
) -> None:
    """Refuse what is no whole number of a range, such as a number of clients.

    Args:
        owner: as for :func:`check_numbers`.
        at_least: the least.
        at_most: the largest, if there is one.
        mend: what else is to be said of the right values, after the range.
        options: name -> value, or several in a list or dict; ``None`` is an option that is not set.

    Raises:
        ConfigurationError: naming the first that is not.
    """
    for name, value in _each(options):
        end = at_most
        if isinstance(value, Integral) and not isinstance(value, bool):
            if at_least <= int(value) <= (_MOST if at_most is None else at_most):
                continue
            end = _MOST if at_most is None and int(value) > _MOST else at_most
            kind = "number"
        else:
            kind = "whole number"
        raise _refusal(owner, name, value, f"{kind}{_range(at_least, None, end, None)}{mend}")


def _each(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The values that are set, each with its name: those of a list as ``ratios[0]``."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _each({f"{name}[{key}]": one for key, one in value.items()})
        elif isinstance(value, list | tuple):
            yield from _each({f"{name}[{place}]": one for place, one in enumerate(value)})
        elif value is not None:
            yield name, value


def _as_float(value: object) -> float | None:
    """The value if it is a number, infinite where it is beyond all that a float holds."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _inside(
    value: float, at_least: float | None, above: float | None, at_most: float | None, below: float | None
) -> bool:
    return (
        (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
    )


def _range(at_least: float | None, above: float | None, at_most: float | None, below: float | None) -> str:
    end = f" to {at_most}" if at_most is not None else f" to below {below}" if below is not None else ""
    if at_least is not None:
        return f" from {at_least}{end}" if end else f" of at least {at_least}"
    if above is not None:
        return f" above {above}" + (end and f" and {'at most' if below is None else 'below'} {end.split()[-1]}")
    return end and f" of at most {at_most}"


def _refusal(owner: object, name: str, value: object, wanted: str) -> ConfigurationError:
    whose = owner if isinstance(owner, str) else type(owner).__name__
    shown = value if isinstance(value, Real) else repr(value)
    return ConfigurationError(f"{whose}{whose and '.'}{name}={cut(shown)}: give a {wanted}.")
