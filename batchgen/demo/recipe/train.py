"""The training loop: fixed seed, fixed steps, one thread, the same bytes on every run."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from batchgen.demo.recipe.batches import Mixture, batches, instruction_ids
from batchgen.demo.recipe.model import Qwen3, Shape
from batchgen.demo.recipe.muon import Muon

ANNOUNCE_EVERY = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """What one model is trained with. Rates are peaks; both decay linearly to zero."""

    shape: Shape
    steps: int
    bare_steps: int
    """Steps before the instruction comes in: copying is learned several times faster without."""
    mixture: Mixture
    bare_share: float = 0.15
    """Share of the later steps that stay without instruction, so that both prompts work."""
    matrix_rate: float = 0.02
    vector_rate: float = 0.004


PLANS = {
    "orders-qwen3-2m": Plan(
        Shape(256, 3, 512, 4, 2),
        steps=2_000,
        bare_steps=1_000,
        mixture=Mixture(
            rows=16, seed=7, made_up_share=0.25, off_topic_share=0.04, sorted_batches=8
        ),
    ),
    # The draft has enough to do with known names: given the target's mixture, it still answered
    # nearly every order with the wrong unit after 1,800 steps.
    "orders-qwen3-1m": Plan(
        Shape(128, 2, 384, 2, 1),
        steps=2_400,
        bare_steps=1_200,
        mixture=Mixture(rows=16, seed=7, made_up_share=0, off_topic_share=0, sorted_batches=1),
    ),
}
"""The target and its draft, by the names that they ship under."""


def train(plan: Plan, tokenizer: Tokenizer, announce: Callable[[str], None]) -> Qwen3:
    """Train one model on this thread; `announce` gets a line of progress now and then."""
    torch.set_num_threads(1)  # sums over several threads would not repeat to the bit
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(plan.mixture.seed)
    model = Qwen3(plan.shape)
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
    vectors = [p for name, p in model.named_parameters() if p.dim() == 1 or "embed" in name]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(vectors, betas=(0.9, 0.98), weight_decay=0.0)
    instruction = torch.tensor([instruction_ids(tokenizer)])
    chance = torch.Generator().manual_seed(plan.mixture.seed)
    started = time.monotonic()
    supply = batches(tokenizer, plan.mixture)
    for step, batch in zip(range(plan.steps), supply, strict=False):
        stays_bare = torch.rand((), generator=chance).item() < plan.bare_share
        bare = step < plan.bare_steps or stays_bare
        prefix = None if bare else model(instruction)[1]
        hidden, _ = model(batch.ids, prefix)
        wanted = batch.targets >= 0
        loss = functional.cross_entropy(model.logits(hidden[wanted]), batch.targets[wanted])
        loss.backward()
        share = _rate_share(step, plan)
        torch.nn.utils.clip_grad_norm_(vectors, 1.0)
        muon.step(plan.matrix_rate * share)
        for group in adam.param_groups:
            group["lr"] = plan.vector_rate * share
        adam.step()
        adam.zero_grad(set_to_none=True)
        if step % ANNOUNCE_EVERY == 0 or step == plan.steps - 1:
            took_s = time.monotonic() - started
            kind = "bare" if bare else "with instruction"
            announce(f"step {step:5}  loss {loss.item():.4f}  {took_s:6.0f} s  {kind}")
    return model


def _rate_share(step: int, plan: Plan) -> float:
    """Warm-up over 50 steps, flat to half of the plan, then linear to zero; 0 to 1."""
    left = (plan.steps - step) / plan.steps
    return min(1.0, (step + 1) / 50, left / 0.5)
