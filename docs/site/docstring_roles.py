"""Docstrings of the package as Markdown: Sphinx's roles, literals and tables are written otherwise there."""

import re

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):`~?([^`]+)`")
TABLE = re.compile(r"^([ \t]*)(=+(?: +=+)+)[ \t]*\n(.*?)^\1\2[ \t]*$(?![\s\S]*?^\1\2)", re.MULTILINE | re.DOTALL)


def as_markdown(text: str) -> str:
    """A docstring's roles and double backquotes as code, its simple tables and ``::`` blocks as they stand."""
    text = ROLE.sub(lambda found: f"`{found[1].rsplit('.', 1)[-1]}`", text)
    text = TABLE.sub(lambda found: f"{found[1]}```text\n{found[0]}\n{found[1]}```", text)
    text = re.sub(r"(?<!`)``(?!`)([^`]+)``(?!`)", r"`\1`", text)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


class DocstringRoles(griffe.Extension):
    """Rewrites every docstring as it is loaded, and shows the constructors that ``checked_fields`` makes."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Change the text of one object's docstring."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: object) -> None:
        """Take ``checked_fields`` for the dataclass that it makes."""
        for decorator in cls.decorators:
            if str(decorator.value) == "checked_fields":
                dataclass = griffe.ExprName("dataclasses.dataclass")
                decorator.value = griffe.ExprCall(dataclass, [griffe.ExprKeyword("kw_only", "True")])
