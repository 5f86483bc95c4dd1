"""What speculation did for one request, from the sizes of its steps.

The pipeline tells of each step how many tokens it gave a request. The first gives the prompt's own;
each later one verifies what was proposed and gives one token besides those accepted. The step that
ends a request counts on neither side, as in openvino-genai's own SDPerModelsPerfMetrics: what was
proposed beyond the end is neither accepted nor rejected.
"""

from collections.abc import Sequence

from batchgen.engines.spec import OpenVinoSpec


def accepted_tokens(step_sizes: Sequence[int]) -> int:
    """How many proposed tokens were accepted."""
    return sum(size - 1 for size in step_sizes[1:-1])


def drafted_tokens(spec: OpenVinoSpec, step_sizes: Sequence[int], limit: int) -> int | None:
    """How many tokens were proposed to a request of at most `limit` tokens.

    The pipeline does not tell, but a draft model proposes `num_assistant_tokens` a step. Fewer are
    proposed near the limit, which is taken in, and where the draft ends the text itself, which
    cannot be: then this is too many, and the acceptance rate too low.
    None where as many are proposed as the draft is sure of, or as a lookup finds.
    """
    if spec.draft is None or spec.draft.num_assistant_tokens is None:
        return None
    drafted = 0
    generated = sum(step_sizes[:1])
    for size in step_sizes[1:-1]:
        drafted += max(0, min(spec.draft.num_assistant_tokens, limit - generated - 1))
        generated += size
    return drafted
