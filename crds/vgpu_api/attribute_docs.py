"""Reads the docstrings of fields from the source of their models.

Only what is generated from the models needs them. With pydantic's `use_attribute_docstrings`, every
process would parse the source of every model when it starts, which takes longer than all other
imports of this package together.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


def field_docs(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstrings of a model's fields by name, those of its base classes included."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= _docs_in(base.__module__).get(base.__name__, {})
    return found


@cache
def _docs_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of all fields in a module, by class and by field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: _docs_of(each) for each in tree.body if isinstance(each, ast.ClassDef)}


def _docs_of(model: ast.ClassDef) -> Mapping[str, str]:
    found = {}
    for field, after in pairwise(model.body):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found
