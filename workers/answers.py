"""From generated tokens to what a request asked for: text, thinking, tool calls, valid JSON."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from batchgen.chat import reasoning
from batchgen.chat.encoder import PromptEncoder
from batchgen.chat.reasoning import REASONING_PARSERS, ThinkTags
from batchgen.chat.tool_calls import ToolFormat, call_grammar
from batchgen.chat.tool_formats import TOOL_PARSERS, parser_name, shows_tools
from batchgen.domain.errors import InvalidRequest
from batchgen.domain.outcomes import Choice, Failed, FinishReason, ToolCall
from batchgen.domain.requests import ChatPrompt, GenerationRequest, SamplingParams
from batchgen.engines.spec import EngineSpec, OpenVinoSpec, SimulatedSpec
from batchgen.formats.schemas import answer_fault

_NONE = "none"
# So many of the prompt's last tokens say whether it leaves the model thinking.
_PROMPT_END = 16


class Answers:
    """Knows how one model thinks and calls tools: by its spec, or else by its chat template."""

    def __init__(self, spec: EngineSpec, encoder: PromptEncoder) -> None:
        self._encoder = encoder
        template = encoder.template
        tool_parser: str | None = _NONE
        reasoning_parser: str | None = _NONE
        if isinstance(spec, OpenVinoSpec | SimulatedSpec):
            tool_parser, reasoning_parser = spec.tool_parser, spec.reasoning_parser
        self._shows_tools = shows_tools(template)
        self._parses_tools = tool_parser != _NONE
        self._tools: ToolFormat | None = TOOL_PARSERS.get(
            tool_parser or parser_name(template) or _NONE
        )
        self._tags: ThinkTags | None = (
            reasoning.tags_of(template)
            if reasoning_parser is None
            else REASONING_PARSERS.get(reasoning_parser)
        )

    def hold(self, request: GenerationRequest) -> GenerationRequest:
        """The request, its answer held to the tool choice where that asks for it.

        Raises InvalidRequest for what this model cannot be asked.
        """
        choice = request.answer.tools
        if choice is None:
            return request
        if not self._shows_tools:
            raise InvalidRequest(
                "Unsupported parameter: the model's chat template shows no tools.",
                code="unsupported_parameter",
                param="tools",
            )
        if self._tools is None:
            if self._parses_tools or choice.required:
                raise InvalidRequest(
                    "Unsupported parameter: how this model writes tool calls is not known; the "
                    f"engine's 'tool_parser' may be one of {', '.join(TOOL_PARSERS)}, or 'none' to "
                    "leave calls in the text.",
                    code="unsupported_parameter",
                    param="tools",
                )
            return request
        grammar = call_grammar(self._tools, choice)
        if grammar is None:
            return request
        return replace(request, sampling=replace(request.sampling, grammar=grammar))

    def read(
        self,
        request: GenerationRequest,
        sampling: SamplingParams,
        prompt_ids: Sequence[int],
        choice: Choice,
    ) -> Choice | Failed:
        """The choice with its text and all that is in it; a failure where strict JSON is not."""
        text = choice.text
        if text is None:
            text = self._encoder.decode(choice.token_ids, sampling, keep=self._kept(request))
        choice = replace(choice, text=text)
        if isinstance(request.prompt, ChatPrompt):
            choice = self._with_thought(request, sampling, prompt_ids, choice)
            choice = self._with_calls(request, choice)
        return self._checked(request, choice)

    def _kept(self, request: GenerationRequest) -> frozenset[str]:
        """Control tokens that parsing needs to see."""
        if not isinstance(request.prompt, ChatPrompt):
            return frozenset()
        tags = self._tags
        think = frozenset() if tags is None else frozenset({tags.begin, tags.end})
        if request.answer.tools is None or self._tools is None:
            return think
        return think | self._tools.markers

    def _with_thought(
        self,
        request: GenerationRequest,
        sampling: SamplingParams,
        prompt_ids: Sequence[int],
        choice: Choice,
    ) -> Choice:
        tags, tools, text = self._tags, request.answer.tools, choice.text or ""
        if tags is None:
            return choice
        # A text that is held to a form from its first token on has no room for thinking.
        held = sampling.grammar is not None and (tools is None or tools.required)
        end = self._encoder.decode(prompt_ids[-_PROMPT_END:], keep={tags.begin, tags.end})
        opened = reasoning.is_opened(end, tags)
        thought = None if held else reasoning.split(text, tags, opened=opened)
        if thought is None:
            return replace(choice, n_reasoning=0)
        ends = thought.thinking_ends
        n_reasoning = len(choice.token_ids)
        if ends is not None:
            n_reasoning = self._tokens_for(choice.token_ids, ends, {tags.begin, tags.end})
        return replace(
            choice, text=thought.content, reasoning=thought.reasoning, n_reasoning=n_reasoning
        )

    def _tokens_for(self, ids: Sequence[int], chars: int, keep: set[str]) -> int:
        """How many of the tokens it takes to write so many characters."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self._encoder.decode(ids[:middle], keep=keep)) < chars:
                low = middle + 1
            else:
                high = middle
        return low

    def _with_calls(self, request: GenerationRequest, choice: Choice) -> Choice:
        offered = request.answer.tools
        if offered is None or self._tools is None:
            return choice
        text, calls = self._tools.parse(choice.text or "", offered)
        if not calls:
            return choice
        if not offered.parallel:
            calls = calls[:1]
        finish = choice.finish_reason
        return replace(
            choice,
            text=text,
            tool_calls=tuple(
                ToolCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments)
                for call in calls
            ),
            finish_reason=FinishReason.TOOL_CALLS if finish is FinishReason.STOP else finish,
        )

    def _checked(self, request: GenerationRequest, choice: Choice) -> Choice | Failed:
        """An answer that was cut at its limit says so by its finish reason, as OpenAI's do."""
        schema = request.answer.json_schema
        if schema is None or choice.finish_reason is FinishReason.LENGTH:
            return choice
        fault = answer_fault(choice.text or "", schema)
        if fault is None:
            return choice
        if request.answer.strict:
            message = f"The answer ended without the form that was asked for: {fault}"
            return Failed(500, "invalid_structured_output", message, None)
        return replace(choice, form_fault=fault)
