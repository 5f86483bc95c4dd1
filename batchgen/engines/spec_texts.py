"""The text under each field of a class, as it stands in the source: help and reference pages are
made of it, so that a setting is described in one place.
"""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise


@cache
def texts_of(kind: type) -> dict[str, str]:
    """By the field's name, on one line; "" where there is none."""
    (body,) = (
        node.body
        for node in _module(kind.__module__).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    texts = {}
    for field, after in pairwise([*body, None]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            texts[field.target.id] = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                texts[field.target.id] = " ".join(str(after.value.value).split())
    return texts


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[name]))
