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
        return name.startswith("embed") or self.parameters[name].dim() != 2

    @torch.no_grad()
    def step(self, rate: float, quantize: bool) -> Tensor:
        """Applies the gradients; returns their norm before clipping.

        `rate` is a factor for the learning rate, 0 to 1. The `_foreach` functions need few kernel
        launches on a GPU, because they process many tensors per call.
        """
        self.num_steps += 1
        rate *= min(1.0, self.num_steps / RAMP_STEPS)
        gradients = {n: p.grad.float() for n, p in self.parameters.items() if p.grad is not None}
        norm = torch.stack(torch._foreach_norm(list(gradients.values()))).norm()
        torch._foreach_mul_(list(gradients.values()), (CLIP_NORM / (norm + 1e-6)).clamp(max=1.0))
        self._adam_step([name for name in gradients if self._adam(name)], gradients, rate)
        for names in self.by_shape.values():
            self._muon_step(names, gradients, rate)
        self.write(quantize)
        return norm

    def _adam_step(self, names: list[str], gradients: dict[str, Tensor], rate: float) -> None:
        gradient, master, first, second = (
            [each[name] for name in names]
            for each in (gradients, self.master, self.first, self.second)
        )
        torch._foreach_lerp_(first, gradient, 1 - BETAS[0])
        torch._foreach_lerp_(second, torch._foreach_mul(gradient, gradient), 1 - BETAS[1])
        corrected = torch._foreach_div(second, 1 - BETAS[1] ** self.num_steps)
        torch._foreach_sqrt_(corrected)
        torch._foreach_add_(corrected, 1e-8)
        update = torch._foreach_div(first, 1 - BETAS[0] ** self.num_steps)
        torch._foreach_div_(update, corrected)
        torch._foreach_add_(master, update, alpha=-ADAM_RATE * rate)

    def _muon_step(self, names: list[str], gradients: dict[str, Tensor], rate: float) -> None:
        gradient, master, first = (
            [each[name] for name in names] for each in (gradients, self.master, self.first)
        )
        torch._foreach_lerp_(first, gradient, 1 - MOMENTUM)
        updates = torch._foreach_lerp(gradient, first, MOMENTUM)
        rows, columns = updates[0].shape
        scale = MUON_RATE * rate * max(1.0, rows / columns) ** 0.5
        directions = orthogonalize(torch.stack(updates)).unbind()
        torch._foreach_mul_(master, 1 - MUON_RATE * rate * WEIGHT_DECAY)
        torch._foreach_add_(master, directions, alpha=-scale)

    @torch.no_grad()
    def write(self, quantize: bool) -> None:
        """Copies the master weights into the model, rounded or quantized."""
        weights = dict(self.master)
        if quantize:
            matrices = {name: each for name, each in weights.items() if each.dim() == 2}
            flat = fake_quantize(torch.cat([each.flatten() for each in matrices.values()]))
            parts = flat.split([each.numel() for each in matrices.values()])
            for name, part in zip(matrices, parts, strict=True):
                weights[name] = part.view_as(matrices[name])
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])
