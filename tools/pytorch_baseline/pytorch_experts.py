"""MoE layer in PyTorch, for pytorch_step.py: routing, permutation by expert, grouped GEMMs.

The grouped GEMMs are PyTorch's own: torch._grouped_mm in BF16, and torchao's differentiable
torch._scaled_grouped_mm in the recipe rowwise, which requires every expert's row count to be a multiple of
16. Rows are gathered, never scattered, also in backward, so there are no atomic additions.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Permute(torch.autograd.Function):
    """Permutes rows of tokens [T, C] by expert: [T K, C]. `token` and `place` are each row's token and
    each slot's row."""

    @staticmethod
    def forward(ctx, x, token, place):
        ctx.save_for_backward(place)
        ctx.tokens = x.shape[0]
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx, dy):
        (place,) = ctx.saved_tensors
        return dy.index_select(0, place).view(ctx.tokens, -1, dy.shape[-1]).sum(1), None, None


class Unpermute(torch.autograd.Function):
    """Sums each token's rows: [T K, C] to [T, C]."""

    @staticmethod
    def forward(ctx, y, token, place, tokens):
        ctx.save_for_backward(token)
        return y.index_select(0, place).view(tokens, -1, y.shape[-1]).sum(1)

    @staticmethod
    def backward(ctx, dx):
        (token,) = ctx.saved_tensors
        return dx.index_select(0, token), None, None, None


def grouped(recipe, x, w, ends):
    """Returns the rows of each expert e, which end at ends[e], times w[e]^T; w [E, N, K]."""
    if recipe == "rowwise":
        from torchao.prototype.moe_training.fp8_grouped_mm import _to_fp8_rowwise_then_scaled_grouped_mm
        return _to_fp8_rowwise_then_scaled_grouped_mm(x, w.transpose(-2, -1), ends, pad_token_groups_for_grouped_mm=False)
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)


class Experts(nn.Module):
    """E SwiGLU experts with top-K routing: softmax over the chosen logits, or over all if weights are not
    normalized. Forced routing gives token t the experts t K, t K + 1, ... modulo E, like precbench's
    `--routing balanced`, with weights still from the router."""

    def __init__(self, width, ffn, experts, top_k, normalise):
        super().__init__()
        self.top_k, self.normalise, self.recipe, self.forced = top_k, normalise, "bf16", False
        self.router = nn.Linear(width, experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * ffn, width))
        self.down = nn.Parameter(torch.empty(experts, width, ffn))

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        T, E = x.shape[0], self.router.out_features
        z = self.router(x).float()
        if self.forced:
            index = (torch.arange(T * self.top_k, device=x.device, dtype=torch.int32) % E).view(T, -1).long()
            chosen = z.gather(1, index)
        else:
            chosen, index = z.topk(self.top_k, -1)
        weights = chosen.softmax(-1) if self.normalise else (chosen - z.logsumexp(-1, keepdim=True)).exp()
        of_rows, order = index.flatten().to(torch.int16).sort(stable=True)
        every = torch.arange(E, device=x.device, dtype=torch.int16)
        ends = torch.searchsorted(of_rows, every, right=True, out_int32=True)
        place = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
        token = order // self.top_k
        rows = Permute.apply(x, token, place)
        gate, up = grouped(self.recipe, rows, self.gate_up, ends).float().chunk(2, -1)
        s = (F.silu(gate) * up * weights.flatten()[order, None]).to(x.dtype)
        return Unpermute.apply(grouped(self.recipe, s, self.down, ends), token, place, T).view(shape)
