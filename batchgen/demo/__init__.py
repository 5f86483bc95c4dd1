"""The demo: a small task with known answers, and tiny models trained on it by this recipe.

`orders` (standard library only) is what the running product imports. `recipe/` holds the training
and export code; it needs torch and is run by `make demo-model` alone.
"""
