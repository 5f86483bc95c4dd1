"""A Jinja environment for templates that nobody here has read: no escape, no endless work.

The sandbox keeps templates from reaching Python's insides; what is added here bounds their work.
Each loop turn, call, filter and joined string is paid for from a budget of characters and turns,
and whatever may produce something large is paid for before it is made. The processor time of a
rendering is bounded too.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import Environment, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

BASE_BUDGET = 10_000_000
BUDGET_PER_CHAR = 50
CPU_LIMIT_S = 2.0
_MAX_NUMBER = 100_000  # as an argument: widths, indents, counts
_LARGE_WIDTH = re.compile(r"\d{6}|\*")
_TURN = "_bounded_turns"
_JOIN = "_bounded_join"


class TooCostly(SecurityError):
    """The template asks for more work than a rendering may cost."""


@dataclass
class _Budget:
    left: int
    cpu_until: float


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of chat templates, set up as transformers does.

    Render within `with environment.budget(chars):`, where `chars` is the size of the input.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self._local = threading.local()
        del self.globals["lipsum"]
        for name, made in list(self.filters.items()):
            self.add_filter(name, made)
        self.filters[_TURN] = self._turns
        self.filters[_JOIN] = self._joined

    def add_filter(self, name: str, made: Callable[..., Any]) -> None:
        """Let templates use a filter, under the budget."""
        self.filters[name] = self._paid(made)

    def budget(self, chars: int) -> "_Rendering":
        """A fresh budget for one rendering of this thread, for input of so many characters."""
        return _Rendering(self._local, BASE_BUDGET + BUDGET_PER_CHAR * chars)

    def spend(self, cost: int) -> None:
        """Pay for work. Raises TooCostly."""
        budget: _Budget | None = getattr(self._local, "budget", None)
        if budget is not None:
            budget.left -= cost + 1
            if budget.left < 0 or time.thread_time() > budget.cpu_until:
                raise TooCostly("the chat template does too much work")

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._prepay(getattr(obj, "__name__", ""), (getattr(obj, "__self__", None), *args), kwargs)
        result = super().call(context, obj, *args, **kwargs)
        self.spend(_size(result))
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            self.spend(_size(left) + _size(right))
        elif operator == "*":
            for sized, count in ((left, right), (right, left)):
                if isinstance(count, int) and not isinstance(sized, int | float):
                    self.spend(_size(sized) * max(0, count))
        elif operator == "**":
            self._no_large(left, right)
        elif isinstance(left, str):
            self._no_wide(left)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            self._no_wide(str(value.__self__))
        return wrapped

    def concat(self, parts: Iterable[str], /) -> str:
        texts = list(parts)
        self.spend(sum(map(len, texts)))
        return "".join(texts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return cast("nodes.Template", _Bounds().visit(super()._parse(source, name, filename)))

    def _paid(self, made: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, paid for before and after."""
        name = getattr(made, "__name__", "").removeprefix("sync_").removeprefix("do_")
        # Filters that want the environment or context get it as their first argument.
        skip = 1 if hasattr(made, "jinja_pass_arg") else 0

        def paid(*args: Any, **kwargs: Any) -> Any:
            args = tuple(list(self._each(a)) if hasattr(a, "__next__") else a for a in args)
            self._prepay(name, args[skip:], kwargs)
            result = made(*args, **kwargs)
            self.spend(_size(result))
            return result

        paid.__dict__.update(getattr(made, "__dict__", {}))
        return paid

    def _prepay(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._no_large(*args[1:], *kwargs.values())
        if not args:
            return
        subject = args[0]
        if name == "replace" and len(args) >= 3:
            text, old, new = (str(arg) for arg in args[:3])
            self.spend((text.count(old) if old else len(text)) * len(new))
        elif name == "format":
            self._no_wide(str(subject))
        elif name == "join":
            items = next((a for a in args if isinstance(a, list | tuple)), ())
            glue = sum(len(a) for a in args if isinstance(a, str))
            self.spend(sum(_size(item) + glue for item in items))

    def _no_large(self, *values: Any) -> None:
        if any(isinstance(value, int) and abs(value) > _MAX_NUMBER for value in values):
            raise TooCostly(f"the chat template uses a number over {_MAX_NUMBER} as a size")

    def _no_wide(self, pattern: str) -> None:
        if _LARGE_WIDTH.search(pattern):
            raise TooCostly("the chat template formats with a very large width")

    def _turns(self, items: Iterable[Any]) -> Iterable[Any]:
        """The iterable of a loop, each turn paid for."""
        if isinstance(items, list | tuple | dict | range | str):
            self.spend(len(items))  # What has a length keeps it: `loop.last` needs no look-ahead.
            return items
        return self._each(items)

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(1)
            yield item

    def _joined(self, parts: list[Any]) -> str:
        texts = [str(part) for part in parts]
        self.spend(sum(map(len, texts)))
        return "".join(texts)


class _Rendering:
    def __init__(self, local: threading.local, budget: int):
        self._local = local
        self._units = budget

    def __enter__(self) -> None:
        self._local.budget = _Budget(self._units, time.thread_time() + CPU_LIMIT_S)

    def __exit__(self, *_: object) -> None:
        self._local.budget = None


class _Bounds(NodeTransformer):
    """Puts every loop and every `~` of a template under the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 finds it by this name
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _TURN, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - the same
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        joined = nodes.Filter(parts, _JOIN, [], [], None, None, lineno=node.lineno)
        return joined.set_environment(cast("Environment", node.environment))


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part; its content stays."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0
