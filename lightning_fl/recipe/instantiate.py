"""Instantiation of a parsed recipe, with the errors of constructors unchanged."""

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.core.errors import FederatedError
from lightning_fl.files.generated_modules import remove_generated_files
from lightning_fl.files.yaml import Quoted
from lightning_fl.runtime.loggers import refused_logger


class _ConstructorError(BaseException):
    """Carries a constructor's error past the parser, which would report any ``Exception`` as a wrong type."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def instantiate(parser: ArgumentParser, config: Namespace) -> Namespace:
    """Instantiate the trainer, the model and the data of a recipe; errors name the class."""
    try:
        return parser.instantiate(config, instantiators=[(_construct_for_parser, object, True)])
    except _ConstructorError as carrier:
        raise carrier.error from carrier.error.__cause__
    finally:
        remove_generated_files()


def construct(class_type: type, *args: Any, **kwargs: Any) -> Any:
    """Instantiate a class; its errors name class and argument: ``LabelNoise.std=nan``."""
    try:
        return class_type(*args, **{name: _plain(value) for name, value in kwargs.items()})
    except FederatedError as error:
        name, text = class_type.__name__, str(error)
        joint = "." if text.partition("=")[0].partition("[")[0] in kwargs else ": "
        named = error if name in text or text.startswith("trainer.") else type(error)(f"{name}{joint}{text}")
        raise named from error.__cause__
    except Exception as error:
        if (refused := refused_logger(class_type, error)) is not None:
            raise refused from error
        raise


def _construct_for_parser(class_type: type, *args: Any, **kwargs: Any) -> Any:
    try:
        return construct(class_type, *args, **kwargs)
    except Exception as error:
        raise _ConstructorError(error) from error


def _plain(value: Any) -> Any:
    """A value as it was written, with plain texts."""
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, complex) and value.imag == 0:  # the parser's 1.0 for NumPy's ArrayLike
        return value.real
    return str(value) if isinstance(value, Quoted) else value
