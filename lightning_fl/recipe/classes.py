"""Classes that recipes name: finding them, and the arguments of their constructors."""

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser

from lightning_fl.core.errors import did_you_mean


def subclasses(base: type) -> Iterator[type]:
    """The imported subclasses of a class, without abstract and private ones."""
    cls: type
    for cls in base.__subclasses__():
        if not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            yield cls
        yield from subclasses(cls)


def find_class(name: str, bases: Sequence[type]) -> type | Callable[..., Any] | str:
    """Find the class of a short or dotted name.

    Args:
        name: short names are those of subclasses of ``bases``; strategies also have registered names.

    Returns:
        The class (or a function that returns an instance), or why there is none, such as "no such class".
    """
    module, _, last = name.rpartition(".")
    if module:
        if not all(part.isidentifier() for part in name.split(".")):
            return "not the name of a class; give a class of your own with its module, as in my_package.MyClass"
        try:
            imported = import_module(module)
        except Exception as error:  # anything that a module of the user raises
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            where = "; classes and paths are searched in the working directory: run in the recipe's folder"
            hint = where if missing and f"{module}.".startswith(f"{missing}.") else ""
            return f"it cannot be imported ({type(error).__name__}: {error}){hint}"
        if hasattr(imported, last):
            return getattr(imported, last)
        place = getattr(imported, "__file__", None) or "a built-in module"
        return f"the module {module} has no {last}{did_you_mean(last, dir(imported))}; the module is {place}"
    known = {cls.__name__: cls for base in bases for cls in subclasses(base)}
    if name in known:
        return known[name]
    from lightning_fl.trainer.arguments import registered_strategy  # imports torch

    if (found := registered_strategy(name)) and issubclass(found[0], tuple(bases)):
        return found[0]
    remedy = "give a class of your own with its module, as in my_package.MyClass"
    return f"there is no such class{did_you_mean(name, known)}; {remedy}"


@cache
def annotations_of(cls: type | Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a class with their annotations, including those that ``**kwargs`` passes to its base classes.

    As for the parser, an argument whose default is ``None`` accepts ``None``.
    """
    found: dict[str, Any] = {}
    classes = cls.__mro__ if isinstance(cls, type) else ()
    for make in [vars(one)["__init__"] for one in classes if "__init__" in vars(one)] or [cls]:
        try:
            parameters = inspect.signature(make).parameters.values()
            hints = get_type_hints(make, include_extras=True)
        except (NameError, TypeError, ValueError):  # written in C, or an annotation that cannot be evaluated
            break
        for one in parameters:
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and one.name not in ("self", *found):
                hint = hints.get(one.name, Any)
                found[one.name] = Union[hint, None] if one.default is None else hint  # noqa: UP007  # of any annotation
        if all(one.kind is not one.VAR_KEYWORD for one in parameters):
            break
    return found


def options_of(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union; an annotation that is not a union is its only one."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def classes_in(annotation: Any) -> list[type]:
    """The classes in an annotation whose subclasses a value may name: not built-in types."""
    parts = [one for part in get_args(annotation) for one in classes_in(part)]
    named = isinstance(annotation, type) and get_origin(annotation) is None and annotation is not Any
    return [annotation, *parts] if named and annotation.__module__ != "builtins" else parts


@cache
def accepted_arguments(cls: type | Callable[..., Any]) -> list[str]:
    """Arguments of a class as the parser finds them, with those of ``**kwargs``; a ValueError for classes in C."""
    parser = ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if isinstance(cls, type) else parser.add_function_arguments
    return [name.split(".")[0] for name in add(cls, None, fail_untyped=False)]
