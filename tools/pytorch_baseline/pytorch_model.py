"""Model of the PyTorch baseline, for pytorch_step.py: Llama, Qwen2.5's biases, Qwen3's or OLMoE's q and k
norms, and MoE layers."""
import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F

from pytorch_experts import Experts


@dataclasses.dataclass(frozen=True)
class Shape:
    """Dimensions of a model; in MoE models `ffn` is the width of each expert."""
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    theta: float = 5e5
    eps: float = 1e-5
    qk_norm: bool = False
    experts: int = 0
    top_k: int = 0
    over_heads: bool = False  # one norm over all heads of q, and one of k
    normalise: bool = True    # normalize the weights of a token's experts
    qkv_bias: bool = False


MODELS = {
    "tiny": Shape(4, 128, 384, 4, 2, 32, 256, True),
    "1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, True),
    "3b": Shape(28, 3072, 8192, 24, 8, 128, 128256, True),
    "8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, False),
    "1.5b": Shape(28, 1536, 8960, 12, 2, 128, 151936, True, 1e6, 1e-6, qkv_bias=True),
    "7b": Shape(28, 3584, 18944, 28, 4, 128, 152064, False, 1e6, 1e-6, qkv_bias=True),
    "tiny-moe": Shape(4, 128, 128, 4, 2, 32, 256, True, experts=8, top_k=2),
    "moe-4b-a1b": Shape(16, 2048, 1024, 32, 8, 64, 128256, True, experts=32, top_k=8),
    "qwen3-30b-a3b": Shape(48, 2048, 768, 32, 4, 128, 151936, False, 1e6, 1e-6, True, experts=128, top_k=8),
    "olmoe-1b-7b": Shape(16, 2048, 1024, 16, 16, 128, 50304, False, 1e4, 1e-5, True, experts=64, top_k=8, over_heads=True,
                         normalise=False),
    "mixtral-8x7b": Shape(32, 4096, 14336, 32, 8, 128, 32000, False, 1e6, experts=8, top_k=2),
}


def find_shape(name):
    """Returns the shape of NAME, or of the first blocks of NAME/LAYERS."""
    name, _, layers = name.partition("/")
    return dataclasses.replace(MODELS[name], layers=int(layers)) if layers else MODELS[name]


class Norm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.eps, self.w = eps, nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.w, self.eps)


def rope_angles(shape, T):
    """Returns cos and sin, [T, head_dim / 2]."""
    angle = torch.outer(torch.arange(T).float(), 1 / shape.theta ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim))
    return angle.cos(), angle.sin()


def rope(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def attention(q, k, v):
    if q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Swiglu(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        lin = lambda i, o: nn.Linear(i, o, bias=False)
        self.w1, self.w3, self.w2 = lin(d, f), lin(d, f), lin(f, d)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        d, h, kv, hd = s.width, s.heads, s.kv_heads, s.head_dim
        self.hd = hd
        lin = lambda heads: nn.Linear(d, heads * hd, bias=s.qkv_bias)
        self.wq, self.wk, self.wv, self.wo = lin(h), lin(kv), lin(kv), nn.Linear(h * hd, d, bias=False)
        self.over_heads = s.over_heads
        norm = lambda n: Norm(n * hd if s.over_heads else hd, s.eps) if s.qk_norm else nn.Identity()
        self.nq, self.nk = norm(h), norm(kv)

    def forward(self, y, cos, sin):
        B, T, _ = y.shape
        heads = lambda t: t.view(B, T, -1, self.hd)  # of this rank
        normed = lambda norm, t: heads(norm(t)) if self.over_heads else norm(heads(t))
        q, k, v = normed(self.nq, self.wq(y)), normed(self.nk, self.wk(y)), heads(self.wv(y))
        q, k = (rope(t.transpose(1, 2), cos, sin) for t in (q, k))
        return self.wo(attention(q, k, v.transpose(1, 2)).transpose(1, 2).reshape(B, T, -1))


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.attn = Attention(s)
        self.n1, self.n2 = Norm(s.width, s.eps), Norm(s.width, s.eps)
        self.ffn = Experts(s.width, s.ffn, s.experts, s.top_k, s.normalise) if s.experts else Swiglu(s.width, s.ffn)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin)
        return x + self.ffn(self.n2(x))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.emb = nn.Embedding(s.vocab, s.width)
        self.layers = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm, self.out = Norm(s.width, s.eps), nn.Linear(s.width, s.vocab, bias=False)
        if s.tied:
            self.out.weight = self.emb.weight

    def forward(self, ids, targets, cos, sin):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.loss(self.norm(x), targets)

    def experts(self):
        return [layer.ffn for layer in self.layers if isinstance(layer.ffn, Experts)]

    def loss(self, x, targets):
        return F.cross_entropy(self.out(x).float().flatten(0, 1), targets.flatten())
