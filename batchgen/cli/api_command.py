"""Commands that talk to a server: the options they share, and the client made from them."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, Self

import typer

from batchgen.cli.options import named_directory

if TYPE_CHECKING:
    from batchgen.client import Client

P = ParamSpec("P")

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The API's address. Default: BATCHGEN_API_URL, else the stack of `batchgen up`.",
        rich_help_panel="Server",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="The API key. Default: BATCHGEN_API_KEY, else the one that `batchgen up` stored.",
        rich_help_panel="Server",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        parser=named_directory,
        metavar="DIR",
        help="The data directory of this machine's stack. Default: BATCHGEN_DATA_DIR.",
        rich_help_panel="Server",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class Api:
    """What a command gets: a client, opened when it is first used, and the form of its output."""

    def __init__(
        self, url: str | None, key: str | None, data_dir: Path | None, *, as_json: bool = False
    ):
        self._url = url
        self._key = key
        self.data_dir = data_dir
        self.as_json = as_json
        self._client: Client | None = None

    @property
    def client(self) -> "Client":
        if self._client is None:
            from batchgen.cli.connect import find_server
            from batchgen.client import Client

            server = find_server(self._url, self._key, self.data_dir)
            self._client = Client(server.url, server.key)
        return self._client

    @property
    def names_server(self) -> bool:
        """Whether a flag or the environment names the server, so that none is to be started."""
        from batchgen.cli.connect import load_settings

        return self._url is not None or "api_url" in load_settings(self.data_dir).model_fields_set

    @property
    def flags(self) -> str:
        """The flags that lead another command to the same server, for a hint."""
        import shlex

        given = {"--url": self._url, "--data-dir": self.data_dir}
        return "".join(f" {k} {shlex.quote(str(v))}" for k, v in given.items() if v is not None)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_SHARED: dict[str, tuple[Any, Any]] = {
    "json": (AsJson, False),
    "url": (Url, None),
    "key": (ApiKey, None),
    "data_dir": (DataDir, None),
}


def api_command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Api, P], None]], Callable[Concatenate[Api, P], None]]:
    """Register a function as a command; its first parameter is the `Api`, the others are options.

    The shared options (--json, --url, --key, --data-dir) are added to its own.
    """

    def register(
        function: Callable[Concatenate[Api, P], None],
    ) -> Callable[Concatenate[Api, P], None]:
        call: Callable[..., None] = function
        own = inspect.signature(function, eval_str=True)
        shared = [
            inspect.Parameter(
                shared_name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for shared_name, (annotation, default) in _SHARED.items()
        ]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            url, key, data_dir, as_json = (
                given.pop(shared_name) for shared_name in ("url", "key", "data_dir", "json")
            )
            with Api(url, key, data_dir, as_json=as_json) as api:
                call(api, **given)

        _api, *rest = own.parameters.values()
        signature = own.replace(parameters=[*rest, *shared])
        command.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
        app.command(name)(command)
        return function

    return register
