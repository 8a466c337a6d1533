"""Muon for matrices, AdamW for other parameters, with float32 master weights.

The model has bfloat16 weights and gradients. A step updates the master weights and copies them to
the model: rounded to bfloat16 or, in the last part of training, quantized. Quantization is trained
with a straight-through estimator: the gradient at the quantized weight updates the master weight.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from .quantization import fake_quantize

MUON_RATE = 0.02
ADAM_RATE = 0.004
MOMENTUM = 0.95
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.05
CLIP_NORM = 1.0
RAMP_STEPS = 30  # steps of the learning-rate ramp, while the moment estimates are inaccurate
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Muon's coefficients of the quintic iteration


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Moves the singular values of each matrix towards 1. matrices: N x O x I, N matrices."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(1, 2) if tall else x).float()


class MasterWeights:
    """Float32 master weights of a model, with optimizer state and update rule."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = dict(model.named_parameters())
        self.master = {n: p.detach().clone().float() for n, p in self.parameters.items()}
        self.first = {n: torch.zeros_like(m) for n, m in self.master.items()}
        self.second = {n: torch.zeros_like(m) for n, m in self.master.items() if self._adam(n)}
        self.by_shape: dict[torch.Size, list[str]] = defaultdict(list)
        for name, weight in self.master.items():
            if not self._adam(name):
                self.by_shape[weight.shape].append(name)
        self.num_steps = 0

    def load(self, master: dict[str, Tensor]) -> None:
        """Replaces the master weights and the model's; the optimizer's moments are unchanged."""
        self.master = {name: weight.clone() for name, weight in master.items()}
        self.write(quantize=False)

    def _adam(self, name: str) -> bool:
        return name.startswith("embed") or self.parameters[name].dim() < 2

    @torch.no_grad()
    def step(self, rate: float, quantize: bool) -> float:
        """Applies the gradients; returns their norm before clipping.

        Args:
            rate: factor for the learning rate, 0 to 1.
            quantize: whether the model gets quantized weights.
        """
        self.num_steps += 1
        rate *= min(1.0, self.num_steps / RAMP_STEPS)
        gradients = {n: p.grad.float() for n, p in self.parameters.items() if p.grad is not None}
        norm = torch.stack([g.norm() for g in gradients.values()]).norm().item()
        factor = min(1.0, CLIP_NORM / (norm + 1e-6))
        for name, gradient in gradients.items():
            gradient.mul_(factor)
            if self._adam(name):
                self._adam_step(name, gradient, rate)
        for names in self.by_shape.values():
            self._muon_step(names, gradients, rate)
        self.write(quantize)
        return norm

    def _adam_step(self, name: str, gradient: Tensor, rate: float) -> None:
        first, second = self.first[name], self.second[name]
        first.lerp_(gradient, 1 - BETAS[0])
        second.lerp_(gradient.square(), 1 - BETAS[1])
        corrected = (second / (1 - BETAS[1] ** self.num_steps)).sqrt_().add_(1e-8)
        update = (first / (1 - BETAS[0] ** self.num_steps)).div_(corrected)
        self.master[name].sub_(update, alpha=ADAM_RATE * rate)

    def _muon_step(self, names: list[str], gradients: dict[str, Tensor], rate: float) -> None:
        updates = []
        for name in names:
            self.first[name].lerp_(gradients[name], 1 - MOMENTUM)
            updates.append(torch.lerp(gradients[name], self.first[name], MOMENTUM))
        rows, columns = updates[0].shape
        scale = MUON_RATE * rate * max(1.0, rows / columns) ** 0.5
        for name, update in zip(names, orthogonalize(torch.stack(updates)), strict=True):
            self.master[name].mul_(1 - MUON_RATE * rate * WEIGHT_DECAY).sub_(update, alpha=scale)

    @torch.no_grad()
    def write(self, quantize: bool) -> None:
        """Copies the master weights into the model, rounded or quantized."""
        for name, parameter in self.parameters.items():
            master = self.master[name]
            parameter.copy_(fake_quantize(master) if quantize and master.dim() == 2 else master)
