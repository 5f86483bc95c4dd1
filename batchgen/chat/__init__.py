"""From a prompt to token ids and back: tokenizers, sandboxed chat templates, `PromptEncoder`."""
