"""batchgen turns the GPUs that somebody owns into an offline LLM service."""

__version__ = "0.1.0"
