"""Writes docs/reference/*.md from the code; `--check` says whether they are up to date.

The command line from its commands, the settings and engine settings from their types and the texts
beside them, the states from the transition tables.
"""

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import typer

from batchgen.cli.main import app
from batchgen.cli.spec_flags import engine_flags, place_in
from batchgen.domain import states
from batchgen.domain.checks import CHECK_TRANSITIONS, CheckState
from batchgen.domain.states import JOB_TRANSITIONS, OPENAI_STATUS, SHARD_TRANSITIONS
from batchgen.engines import spec
from batchgen.engines.spec_texts import texts_of
from batchgen.settings import Settings

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
_CLI_INTRODUCTION = """\
Results go to standard output, progress and remarks to standard error. On a terminal lists are
tables, into a pipe tab-separated values, with `--json` JSON. Exit codes: 0 done, 1 a line or the
job failed, 2 wrong input, 3 a server cannot be reached or started, 130 interrupted,
143 and 129 ended by SIGTERM and SIGHUP.
"""
# Given by options of `model add` that are more than a setting's flag.
_FLAGS = {
    "path": "--path",
    "device": "--device",
    "prompt_lookup": "--prompt-lookup",
    "prompt_lookup.num_assistant_tokens": "--num-assistant-tokens",
}
_OTHER_INTRODUCTION = """\
What a model registered with `"engine": "{engine}"` may set, in the same ways as
[those of openvino](engine-openvino.md); what has no flag by `--set key=value`.
"""
_OPENVINO_INTRODUCTION = """\
What a model registered with `"engine": "{engine}"` may set: in the `spec` of `POST /v1/models`, in
a file of `batchgen model apply` or `model add --spec`, by its flag of `batchgen model add`, or by
`--set key=value`; all but paths and the device also for one job, as its `engine`. A setting that
the engine would drop, ignore or override is refused with the reason
([ADR 7](../adr/0007-openvino-traps.md)); a job's manifest holds what the engine reports as applied.
"""
_STATES_INTRODUCTION = """\
From the transition tables in `batchgen/domain/states.py`, which everything else derives from. An
event that is not drawn is refused in that state.
"""
_JOB_STATES = """\
Each state, and the status that the OpenAI interface shows for it. An ended job is left only by an
explicit retry.
"""
_NOTE = "<!-- Written by scripts/reference.py: `make reference` writes it anew. -->\n"


def main() -> int:
    """0 where the pages are as they should be (or have been written), 1 where one is stale."""
    stale = []
    for name, page in PAGES.items():
        path = REFERENCE / name
        text = _NOTE + page()
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        print(f"stale in docs/reference: {', '.join(stale)}; `make reference` writes them anew")
    return 1 if stale else 0


# -- the command line --------------------------------------------------------------------------


def cli_page() -> str:
    root = typer.main.get_command(app)
    out = [
        "# Command line\n",
        f"{root.help}\n",
        _CLI_INTRODUCTION,
    ]
    for words, command in _commands(root, ("batchgen",)):
        out.append(f"## `{' '.join(words)}`\n")
        out.append(f"{inspect.cleandoc(command.help or '')}\n")
        out.append(_usage(words, command))
        if options := [p for p in command.params if p.param_type_name == "option" and not p.hidden]:
            out.append(_table(("Option", "Meaning"), map(_option_row, options)))
    return "\n".join(out)


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
        return
    for name, child in below.items():
        yield from _commands(child, (*words, name))


def _usage(words: tuple[str, ...], command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    shown = " ".join(p.metavar or p.name.upper() for p in arguments)
    line = " ".join(part for part in (*words, "[OPTIONS]", shown) if part)
    text = f"```\n{line}\n```\n"
    if arguments:
        rows = ((f"`{p.metavar or p.name.upper()}`", p.help or "") for p in arguments)
        text += "\n" + _table(("Argument", "Meaning"), rows)
    return text


def _option_row(option: Any) -> tuple[str, str]:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    meaning = option.help or ""
    if not option.is_flag and option.default is not None:
        meaning += f" Default: `{getattr(option.default, 'value', option.default)}`."
    return f"{names}{value}", meaning


# -- settings ----------------------------------------------------------------------------------


def settings_page() -> str:
    texts = texts_of(Settings)
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default_factory is not None else field.get_default()
        rows.append((f"`BATCHGEN_{name.upper()}`", _default(default), texts[name]))
    return (
        "# Settings\n\nEvery process reads its settings from the environment. Durations are "
        "seconds, sizes bytes.\n\n" + _table(("Variable", "Default", "Meaning"), rows)
    )


# -- engine settings ---------------------------------------------------------------------------


def openvino_page() -> str:
    return _engine_page("openvino", spec.OpenVinoSpec, _OPENVINO_INTRODUCTION)


def embeddings_page() -> str:
    kind = spec.OpenVinoEmbeddingSpec
    return _engine_page("openvino-embeddings", kind, _OTHER_INTRODUCTION)


def simulated_page() -> str:
    return _engine_page("simulated", spec.SimulatedSpec, _OTHER_INTRODUCTION)


def _engine_page(engine: str, kind: type[msgspec.Struct], introduction: str) -> str:
    options = {place_in(engine, flag.setting): flag.option for flag in engine_flags()}
    out = [f"# Engine settings: {engine}\n", introduction.format(engine=engine)]
    for place, part in _parts("", kind):
        has_flags = options if "[]" not in place else {}
        out.append(_part(place or "The model", place, part, has_flags))
    return "\n".join(out)


def _parts(place: str, kind: type[msgspec.Struct]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The objects in which settings stand, and where, each before those in it."""
    yield place, kind
    for field in msgspec.structs.fields(kind):
        inner = typing.get_args(field.type) or (field.type,)
        many = "[]" if typing.get_origin(field.type) is list else ""
        for struct in inner:
            if isinstance(struct, type) and issubclass(struct, msgspec.Struct):
                yield from _parts(f"{place}.{field.name}{many}".removeprefix("."), struct)


def _part(title: str, place: str, kind: type[msgspec.Struct], options: Mapping[str, str]) -> str:
    head = f"## {title if ' ' in title else f'`{title}`'}\n"
    text = f"{inspect.cleandoc(kind.__doc__ or '')}\n"
    rows = _fields(place, kind, options)
    heads: tuple[str, ...] = ("Setting", "Type", "Default", "Meaning")
    if options:
        return "\n".join([head, text, _table((heads[0], "Flag", *heads[1:]), rows)])
    return "\n".join([head, text, _table(heads, (row[:1] + row[2:] for row in rows))])


def _fields(
    place: str, kind: type[msgspec.Struct], options: Mapping[str, str]
) -> Iterator[tuple[str, ...]]:
    texts = texts_of(kind)
    for field in msgspec.structs.fields(kind):
        if field.name in ("cache_dir", "content_hash"):
            continue  # put in by the server
        name = f"{place}.{field.name}" if place else field.name
        default = "required" if field.required else _default(_default_of(field))
        flag = options.get(name) or _FLAGS.get(name)
        option = "" if flag is None else f"`{flag}`"
        yield f"`{name}`", option, _type(field.type), default, texts.get(field.name, "")


def _default_of(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return None if isinstance(field.default, msgspec.Struct) else field.default
    return None


def _type(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return _type(next(a for a in arguments if a is not types.NoneType))
    if origin is list:
        return "array"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)):
        return "object"
    return {bool: "true or false", int: "integer", float: "number", str: "text"}[annotation]


# -- states ------------------------------------------------------------------------------------


def states_page() -> str:
    job_rows = (
        (f"`{s}`", f"`{OPENAI_STATUS[s]}`", "yes" if s in states.TERMINAL_JOB_STATES else "")
        for s in states.JobState
    )
    return "\n".join(
        [
            "# States of jobs, shards and checks\n",
            _STATES_INTRODUCTION,
            "## Jobs\n",
            _diagram(JOB_TRANSITIONS, states.JobState.VALIDATING),
            _JOB_STATES,
            _table(("State", "OpenAI status", "Ended"), job_rows),
            "## Shards\n",
            "A shard is the unit of lease: a range of the input's lines.\n",
            _diagram(SHARD_TRANSITIONS, states.ShardState.PENDING),
            "## Checks of models\n",
            "From `batchgen/domain/checks.py`: what `batchgen model check` waits for.\n",
            _diagram(CHECK_TRANSITIONS, CheckState.WAITING),
        ]
    )


def _diagram(transitions: Mapping[tuple[Any, Any], Any], first: Any) -> str:
    arrows = "".join(
        f"    {source} --> {target}: {event}\n" for (source, event), target in transitions.items()
    )
    rows = ((f"`{s}`", f"`{e}`", f"`{t}`") for (s, e), t in transitions.items())
    table = _table(("In", "comes", "then it is"), rows)
    return f"```mermaid\nstateDiagram-v2\n    [*] --> {first}\n{arrows}```\n\n{table}"


# -- parts of pages ----------------------------------------------------------------------------


def _default(value: Any) -> str:
    if value is None or value in ("", {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:_}`" if isinstance(value, int) and value >= 100_000 else f"`{value}`"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "settings.md": settings_page,
    "engine-openvino.md": openvino_page,
    "engine-openvino-embeddings.md": embeddings_page,
    "engine-simulated.md": simulated_page,
    "states.md": states_page,
}

if __name__ == "__main__":
    sys.exit(main())
