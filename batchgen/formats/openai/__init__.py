"""OpenAI's request bodies in, its records out, one JSON line each."""

from batchgen.formats.openai.names import in_own_words, own_name
from batchgen.formats.openai.reading import parse_line
from batchgen.formats.openai.records import cut_line, embedding_line, error_line, output_line
from batchgen.formats.openai.timings import timing_line

__all__ = [
    "cut_line",
    "embedding_line",
    "error_line",
    "in_own_words",
    "output_line",
    "own_name",
    "parse_line",
    "timing_line",
]
