"""Muon: momentum whose update is made orthogonal (Keller Jordan 2024, kellerjordan.github.io).

For hidden matrices only; embeddings and norms are left to AdamW. Newton-Schulz runs in float32
here: the usual bfloat16 is slow on a CPU.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the quintic of Jordan's post


def orthogonalized(matrix: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrix, roughly: singular values end up around 1."""
    a, b, c = _COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide


class Muon:
    """Nesterov momentum, orthogonalized, with decoupled weight decay."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        self.parameters = list(parameters)
        self.momentum = momentum
        self.decay = decay
        self._averages = [torch.zeros_like(parameter) for parameter in self.parameters]

    def step(self, rate: float) -> None:
        """One update of all matrices with learning rate `rate`; takes the gradients away."""
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self._averages, strict=True):
                average.lerp_(parameter.grad, 1 - self.momentum)
                update = orthogonalized(parameter.grad.lerp(average, self.momentum))
                rows, columns = parameter.shape
                parameter.mul_(1 - rate * self.decay)
                parameter.add_(update, alpha=-rate * max(1.0, rows / columns) ** 0.5)
                parameter.grad = None
