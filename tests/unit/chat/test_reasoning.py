"""Thinking is told from what a model says, also where it never ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.chat.reasoning import MISTRAL, THINK, Thought, is_opened, split, tags_of

pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "think>"]) | st.text(max_size=3),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "opened", "thought"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, Thought("hm", "yes", 19)),
        ("\n<think>hm</think>yes", False, Thought("hm", "yes", 18)),
        ("hm\n</think>\n\nyes", True, Thought("hm", "yes", 11)),
        ("<think>hm</think>yes", True, Thought("hm", "yes", 17)),
        ("<think>\n\n</think>\n\nyes", False, Thought("", "yes", 17)),
        ("<think>hm, and th", False, Thought("hm, and th", "", None)),
        ("hm, and th", True, Thought("hm, and th", "", None)),
        ("<think>a</think>b</think>c", False, Thought("a", "b</think>c", 16)),
        ("yes", False, None),
        ("say <think> or </think>", False, None),
        ("", False, None),
    ],
)
def test_thinking_is_split_off(text: str, opened: bool, thought: Thought | None) -> None:
    assert split(text, THINK, opened=opened) == thought


@given(pieces, st.booleans())
def test_whatever_the_text_nothing_of_it_is_lost(text: str, opened: bool) -> None:
    thought = split(text, THINK, opened=opened)
    if thought is None:
        return
    seam = "" if thought.thinking_ends is None else "</think>"
    whole = thought.reasoning + seam + thought.content
    without_breaks = text.replace("\n", "")
    assert without_breaks.endswith(whole.replace("\n", ""))
    before = without_breaks[: len(without_breaks) - len(whole.replace("\n", ""))]
    assert before.strip() in ("", "<think>")


def test_a_prompt_may_leave_the_model_thinking() -> None:
    assert is_opened("<|assistant|>\n<think>\n", THINK)
    assert not is_opened("<think>\n\n</think>\n\n", THINK)
    assert not is_opened("<|assistant|>\n", THINK)


def test_a_template_tells_the_tags() -> None:
    assert tags_of("{{ content.split('</think>')[-1] }}") is THINK
    assert tags_of("[THINK]{{ thinking }}[/THINK]") is MISTRAL
    assert tags_of("{{ message.content }}") is None
