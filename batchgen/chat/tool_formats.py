"""The ways in which families of models write tool calls, and which is a model's by its template."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from batchgen.chat.tool_calls import Call, Tags, ToolFormat, after, joined, json_at, read_call
from batchgen.domain.requests import ToolChoice


class HermesFormat:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, anywhere: Hermes, Qwen 2.5 and 3."""

    markers = frozenset({"<tool_call>", "</tool_call>"})

    def parse(self, text: str, choice: ToolChoice) -> tuple[str, list[Call]]:
        calls: list[Call] = []
        rest: list[str] = []
        at = 0
        while (begin := text.find("<tool_call>", at)) >= 0:
            inside = begin + len("<tool_call>")
            found = read_call(text, inside, choice.names)
            if found is None:
                rest.append(text[at:inside])
                at = inside
                continue
            call, end = found
            calls.append(call)
            rest.append(text[at:begin])
            at = after(text, end, "</tool_call>")
        rest.append(text[at:])
        return joined(rest, calls), calls

    def tags(self, choice: ToolChoice) -> Tags:
        return Tags(
            tuple(
                (f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": ', "}\n</tool_call>")
                for name in choice.names
            ),
            trigger="<tool_call>",
            separator="\n",
        )


class LlamaJsonFormat:
    """`{"name": …, "parameters": {…}}` and nothing else, several parted by `;`: Llama 3."""

    markers = frozenset({"<|python_tag|>"})

    def parse(self, text: str, choice: ToolChoice) -> tuple[str, list[Call]]:
        calls: list[Call] = []
        at = after(text, 0, "<|python_tag|>")
        while True:
            found = read_call(text, at, choice.names)
            if found is None:
                return text, []
            call, end = found
            calls.append(call)
            at = after(text, end, ";")
            if not text[at:].strip():
                return "", calls

    def tags(self, choice: ToolChoice) -> Tags:
        return Tags(
            tuple((f'{{"name": {json.dumps(name)}, "parameters": ', "}") for name in choice.names)
        )


class MistralFormat:
    """`[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`; later models `[TOOL_CALLS]name[ARGS]{…}`.

    `named`: the later way is the one that answers are held to.
    """

    markers = frozenset({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"})

    def __init__(self, *, named: bool = False) -> None:
        self._named = named

    def parse(self, text: str, choice: ToolChoice) -> tuple[str, list[Call]]:
        before, marker, written = text.partition("[TOOL_CALLS]")
        if not marker:
            return text, []
        calls = self._listed(written, choice.names)
        if calls is None:
            calls = self._parted(written, choice.names)
        return (text, []) if calls is None else (joined([before], calls), calls)

    def tags(self, choice: ToolChoice) -> Tags:
        if self._named:
            around = tuple((f"[TOOL_CALLS]{name}[ARGS]", "") for name in choice.names)
        else:
            around = tuple(
                (f'[TOOL_CALLS][{{"name": {json.dumps(name)}, "arguments": ', "}]")
                for name in choice.names
            )
        return Tags(around, trigger="[TOOL_CALLS]")

    def _listed(self, written: str, names: Collection[str]) -> list[Call] | None:
        at = after(written, 0, "[")
        if at == 0:
            return None
        calls: list[Call] = []
        while (found := read_call(written, at, names)) is not None:
            call, end = found
            calls.append(call)
            at = after(written, end, ",")
            if at == end:
                return calls if not written[after(written, end, "]") :].strip() else None
        return None

    def _parted(self, written: str, names: Collection[str]) -> list[Call] | None:
        calls: list[Call] = []
        for part in written.split("[TOOL_CALLS]"):
            begin = part.find("{")
            name = part[: max(begin, 0)].partition("[CALL_ID]")[0].removesuffix("[ARGS]").strip()
            value = json_at(part, begin) if begin >= 0 and name in names else None
            if value is None or part[value[1] :].strip():
                return None
            calls.append(Call(name, part[begin : value[1]]))
        return calls


class QwenXmlFormat:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen 3
    Coder. A value that its schema does not call a string is JSON.
    """

    markers = frozenset({"<tool_call>", "</tool_call>"})
    _FUNCTION = re.compile(r"<function=([^<>\n]*)>(.*?)</function>", re.DOTALL)
    _PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>(.*?)</parameter>", re.DOTALL)

    def parse(self, text: str, choice: ToolChoice) -> tuple[str, list[Call]]:
        calls: list[Call] = []
        rest: list[str] = []
        at = 0
        # Where no function ends any more, each beginning would look through the rest in vain.
        until = text.rfind("</function>") + len("</function>")
        for found in self._FUNCTION.finditer(text, 0, until):
            arguments = self._arguments(found[1], found[2], choice)
            if arguments is None:
                continue
            calls.append(Call(found[1], arguments))
            before = text[at : found.start()]
            opened = before.rstrip()
            rest.append(opened.removesuffix("<tool_call>") if opened else before)
            at = after(text, found.end(), "</tool_call>")
        rest.append(text[at:])
        return joined(rest, calls), calls

    def tags(self, choice: ToolChoice) -> Tags:
        return Tags(
            tuple(
                (f"<tool_call>\n<function={name}>\n", "\n</function>\n</tool_call>")
                for name in choice.names
            ),
            content="qwen_xml_parameter",
            trigger="<tool_call>",
            separator="\n",
        )

    def _arguments(self, name: str, written: str, choice: ToolChoice) -> str | None:
        if name not in choice.names:
            return None
        properties = json.loads(choice.schemas[choice.names.index(name)]).get("properties", {})
        arguments: dict[str, Any] = {}
        at = 0
        while (found := self._PARAMETER.match(written, at)) is not None:
            key, value = found[1], found[2].removeprefix("\n").removesuffix("\n")
            arguments[key] = _typed(value, properties.get(key))
            at = found.end()
        return json.dumps(arguments, ensure_ascii=False) if not written[at:].strip() else None


def _typed(value: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind in (None, "string"):
        return value
    read = json_at(value, 0)
    return value if read is None or value[read[1] :].strip() else read[0]


TOOL_PARSERS: Mapping[str, ToolFormat] = {
    "hermes": HermesFormat(),
    "llama3_json": LlamaJsonFormat(),
    "mistral": MistralFormat(),
    "mistral_named": MistralFormat(named=True),
    "qwen3_coder": QwenXmlFormat(),
}


def shows_tools(template: str) -> bool:
    """Whether a chat template has a place for tools at all."""
    return re.search(r"\btools\b", template) is not None


def parser_name(template: str) -> str | None:
    """The name of the way in which a chat template teaches to write calls; None: none that we
    know.
    """
    if "[TOOL_CALLS]" in template:
        return "mistral_named" if "[ARGS]" in template else "mistral"
    if "<tool_call>" in template:
        return "qwen3_coder" if "<function=" in template else "hermes"
    if "<|python_tag|>" in template or '"parameters": dictionary of argument' in template:
        return "llama3_json"
    return None
