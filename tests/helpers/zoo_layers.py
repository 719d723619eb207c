"""Layers of torch.nn, each as a residual block: what it is made by, and how it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, TIME = 8, 5


class Residual(nn.Module):
    """Adds half of what a layer makes of its input, `[batch, TIME, WIDTH]`."""

    def __init__(self, layer: nn.Module, call: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.5 * self.call(self.layer, x).reshape(x.shape)


class Stack(nn.Module):
    """Blocks between two linear layers; returns a loss."""

    def __init__(self, make: Callable[[], nn.Module], count: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(make() for _ in range(count))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def plain(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x)


def first(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x)[0][..., :WIDTH]


def turned(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x.transpose(1, 2)).transpose(1, 2)


def image(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x.transpose(1, 2).unsqueeze(-1)).squeeze(-1).transpose(1, 2)


def channels_last(layer: Any, x: torch.Tensor) -> torch.Tensor:
    picture = x.transpose(1, 2).unsqueeze(-1).contiguous(memory_format=torch.channels_last)
    return layer(picture).squeeze(-1).transpose(1, 2)


def volume(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x.transpose(1, 2)[..., None, None])[..., 0, 0].transpose(1, 2)


def causal(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


def decoded(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x, x.flip(1), tgt_mask=causal(x))


def attended(layer: Any, x: torch.Tensor) -> torch.Tensor:
    y, weights = layer(x, x, x, need_weights=True, average_attn_weights=False)
    return y + weights.mean()


def masked(layer: Any, x: torch.Tensor) -> torch.Tensor:
    padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    padding[:, -1] = True
    bias = x.new_zeros(x.shape[1], x.shape[1]).masked_fill(causal(x), -torch.inf)
    return layer(x, x, x, key_padding_mask=padding.float(), attn_mask=bias, need_weights=False)[0]


def other_widths(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x, x[..., :6], x[..., :4], need_weights=False)[0]


def stepped(layer: Any, x: torch.Tensor) -> torch.Tensor:
    state, states = None, []
    for moment in x.unbind(1):
        state = layer(moment, state)
        states.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(states, 1)


def looked_up(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x.detach().abs().mul(10).long().sum(-1) % 11)


def bagged(layer: Any, x: torch.Tensor) -> torch.Tensor:
    tokens = x.detach().abs().mul(10).long().reshape(-1, WIDTH) % 11
    return layer(tokens)


def unpooled(layer: Any, x: torch.Tensor) -> torch.Tensor:
    y, indices = functional.max_pool1d(layer(x), 2, return_indices=True)
    return functional.max_unpool1d(y, indices, 2)


def bilinear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer(x, x.flip(-1)).tanh()


def softmaxed(layer: Any, x: torch.Tensor) -> torch.Tensor:
    target = x.detach().abs().mul(10).long().sum(-1).flatten() % 11
    return x * layer(x.flatten(0, 1), target).output.reshape(*x.shape[:2], 1)


def scripted() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Mish(), nn.Linear(WIDTH, WIDTH))


def lazy() -> nn.Module:
    layer = nn.LazyLinear(WIDTH)
    layer(torch.zeros(1, WIDTH))
    return layer


def normed_weight(**options: Any) -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH), **options)


def attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, **options)


def conv(dims: int, kind: str = "Conv", **options: Any) -> nn.Module:
    kernel = 3 if dims == 1 else (3,) + (1,) * (dims - 1)
    padding = 1 if dims == 1 else (1,) + (0,) * (dims - 1)
    return getattr(nn, f"{kind}{dims}d")(WIDTH, WIDTH, kernel, padding=padding, **options)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    "linear": (lambda: nn.Linear(WIDTH, WIDTH), plain),
    "linear without bias": (lambda: nn.Linear(WIDTH, WIDTH, bias=False), plain),
    "lazy linear": (lazy, plain),
    "bilinear": (lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH), bilinear),
    "mlp": (scripted, plain),
    "encoder layer": (encoder, plain),
    "encoder layer, norm first": (lambda: encoder(norm_first=True, activation="gelu"), plain),
    "encoder": (lambda: nn.TransformerEncoder(encoder(), 2), plain),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True), decoded),
    "transformer": (
        lambda: nn.Transformer(WIDTH, 2, 1, 1, 16, batch_first=True),
        lambda layer, x: layer(x, x.flip(1)),
    ),
    "attention": (lambda: attention(dropout=0.2), attended),
    "attention with masks": (attention, masked),
    "attention of other widths": (
        lambda: attention(kdim=6, vdim=4, add_bias_kv=True, add_zero_attn=True),
        other_widths,
    ),
    "lstm": (lambda: nn.LSTM(WIDTH, 4, 2, batch_first=True, bidirectional=True), first),
    "lstm with dropout": (lambda: nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.3), first),
    "lstm projected": (lambda: nn.LSTM(WIDTH, 16, proj_size=WIDTH, batch_first=True), first),
    "gru": (lambda: nn.GRU(WIDTH, WIDTH, batch_first=True), first),
    "rnn": (lambda: nn.RNN(WIDTH, WIDTH, nonlinearity="relu", batch_first=True), first),
    "lstm cell": (lambda: nn.LSTMCell(WIDTH, WIDTH), stepped),
    "gru cell": (lambda: nn.GRUCell(WIDTH, WIDTH), stepped),
    "rnn cell": (lambda: nn.RNNCell(WIDTH, WIDTH), stepped),
    "conv 1d": (lambda: conv(1), turned),
    "conv 1d, circular": (lambda: conv(1, padding_mode="circular"), turned),
    "conv 2d": (lambda: conv(2), image),
    "conv 2d, depthwise": (lambda: conv(2, groups=WIDTH), image),
    "conv 2d, channels last": (
        lambda: conv(2).to(memory_format=torch.channels_last),
        channels_last,
    ),
    "conv 3d": (lambda: conv(3), volume),
    "transposed conv 1d": (lambda: conv(1, "ConvTranspose"), turned),
    "transposed conv 2d": (lambda: conv(2, "ConvTranspose"), image),
    "transposed conv 3d": (lambda: conv(3, "ConvTranspose"), volume),
    "batch norm 1d": (lambda: nn.BatchNorm1d(WIDTH), turned),
    "batch norm 2d": (lambda: nn.BatchNorm2d(WIDTH, momentum=None), image),
    "batch norm 3d": (lambda: nn.BatchNorm3d(WIDTH, track_running_stats=False), volume),
    "group norm": (lambda: nn.GroupNorm(2, WIDTH), turned),
    "instance norm": (lambda: nn.InstanceNorm1d(WIDTH, affine=True), turned),
    "instance norm, tracking": (
        lambda: nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True),
        turned,
    ),
    "layer norm": (lambda: nn.LayerNorm(WIDTH), plain),
    "rms norm": (lambda: nn.RMSNorm(WIDTH), plain),
    "local response norm": (
        lambda: nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 1), nn.LocalResponseNorm(3)),
        turned,
    ),
    "prelu": (lambda: nn.PReLU(WIDTH), turned),
    "rrelu": (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.RReLU(inplace=True)), plain),
    "glu": (lambda: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()), plain),
    "alpha dropout": (
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SELU(), nn.AlphaDropout(0.2)),
        plain,
    ),
    "dropout 1d": (lambda: nn.Sequential(conv(1), nn.Dropout1d(0.3)), turned),
    "embedding": (lambda: nn.Embedding(11, WIDTH, padding_idx=0), looked_up),
    "embedding, by frequency": (
        lambda: nn.Embedding(11, WIDTH, scale_grad_by_freq=True),
        looked_up,
    ),
    "embedding bag": (
        lambda: nn.Sequential(nn.EmbeddingBag(11, WIDTH), nn.Linear(WIDTH, WIDTH)),
        bagged,
    ),
    "unpool": (lambda: nn.Linear(WIDTH, WIDTH), unpooled),
    "pixel shuffle": (
        lambda: nn.Sequential(
            nn.Unflatten(2, (WIDTH, 1)), nn.Conv2d(TIME, 4 * TIME, 1), nn.PixelShuffle(2)
        ),
        lambda layer, x: layer(x)[:, :, ::2, ::2],
    ),
    "upsample": (
        lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv1d(WIDTH, WIDTH, 2, 2)),
        turned,
    ),
    "adaptive softmax": (lambda: nn.AdaptiveLogSoftmaxWithLoss(WIDTH, 11, [5]), softmaxed),
    "weight norm": (normed_weight, plain),
    "weight norm of each column": (lambda: normed_weight(dim=1), plain),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        plain,
    ),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)), plain),
    "old spectral norm": (lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)), plain),
}

LOOKS_ACROSS = {
    "batch norm 1d",
    "batch norm 2d",
    "batch norm 3d",
    "instance norm, tracking",
}
"""Refused with micro-batches."""

OTHERWISE_IN_PIECES = {
    "encoder layer": "dropout",
    "encoder layer, norm first": "dropout",
    "encoder": "dropout",
    "decoder layer": "dropout",
    "transformer": "dropout",
    "attention": "dropout",
    "lstm with dropout": "dropout",
    "rrelu": "dropout",
    "alpha dropout": "dropout",
    "dropout 1d": "dropout",
    "spectral norm": "its power iteration runs once a piece",
    "old spectral norm": "its power iteration runs once a piece",
    "embedding, by frequency": "its gradient depends on the batch's frequencies",
}
"""Draw other numbers, or count their calls, in micro-batches; why."""
