"""The blocks of random nets. Each maps `[batch, TIME, WIDTH]` to the same shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

WIDTH, TIME = 8, 5

Result = torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]


class Body(nn.Module):
    """A layer, and how it is called with the tensor that goes on and a second one."""

    def __init__(self, call: Callable[..., torch.Tensor], **layers: Any) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.call(self, x, memory)


def _turned(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = body.layer(x.transpose(1, 2)).transpose(1, 2)
    return found[:, :TIME]


def _plain(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return body.layer(x)


def _mlp(chance: random.Random) -> Body:
    drop = chance.choice([nn.Dropout(0.2), nn.AlphaDropout(0.2), nn.Identity(), nn.Dropout1d(0.2)])
    act = chance.choice([nn.GELU(), nn.SiLU(), nn.Tanh(), nn.LeakyReLU(inplace=True), nn.PReLU()])
    wide = nn.Sequential(nn.Linear(WIDTH, 12), act, drop, nn.Linear(12, WIDTH))
    return Body(_plain, layer=wide)


def _conv(chance: random.Random) -> Body:
    groups = chance.choice([1, 2, WIDTH])
    kind = chance.choice([nn.Conv1d, nn.ConvTranspose1d])
    return Body(_turned, layer=kind(WIDTH, WIDTH, 3, padding=1, groups=groups))


def _image(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    picture = body.layer(x.unsqueeze(1))
    return body.back(picture).squeeze(1)


def _conv2d(chance: random.Random) -> Body:
    norm = chance.choice([nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)])
    wide = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm, nn.ReLU(inplace=True))
    return Body(_image, layer=wide, back=nn.Conv2d(4, 1, 1))


def _norm(chance: random.Random) -> Body:
    along = [nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)]
    across = [
        nn.BatchNorm1d(WIDTH),
        nn.GroupNorm(2, WIDTH),
        nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True),
    ]
    layer = chance.choice([*along, *across])
    return Body(_turned if layer in across else _plain, layer=layer)


def _recurrent(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return body.layer(x)[0]


def _rnn(chance: random.Random) -> Body:
    kind = chance.choice([nn.RNN, nn.GRU, nn.LSTM])
    both = chance.random() < 0.4
    hidden = WIDTH // 2 if both else WIDTH
    layers = chance.choice([1, 2])
    dropout = 0.1 if layers == 2 else 0.0
    more = {"batch_first": True, "bidirectional": both, "num_layers": layers, "dropout": dropout}
    return Body(_recurrent, layer=kind(WIDTH, hidden, **more))


def _unrolled(body: Any, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    state = memory[:, 0].contiguous()
    found = []
    for time in range(TIME):
        state = body.layer(x[:, time], state)
        found.append(state)
    return torch.stack(found, 1)


def _cell(chance: random.Random) -> Body:
    return Body(_unrolled, layer=chance.choice([nn.GRUCell, nn.RNNCell])(WIDTH, WIDTH))


def _attending(body: Any, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    found, weights = body.layer(x, memory if body.cross else x, memory if body.cross else x)
    return found + weights.mean()


def _attention(chance: random.Random) -> Body:
    layer = nn.MultiheadAttention(WIDTH, 2, dropout=chance.choice([0.0, 0.1]), batch_first=True)
    return Body(_attending, layer=layer, cross=chance.random() < 0.5)


def _encoder(chance: random.Random) -> Body:
    first = chance.random() < 0.5
    return Body(
        _plain,
        layer=nn.TransformerEncoderLayer(WIDTH, 2, 12, 0.1, batch_first=True, norm_first=first),
    )


def _decoding(body: Any, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    return body.layer(x, memory)


def _decoder(_: random.Random) -> Body:
    return Body(_decoding, layer=nn.TransformerDecoderLayer(WIDTH, 2, 12, 0.0, batch_first=True))


def _scaled(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    q, k, v = body.layer(x).chunk(3, dim=-1)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _sdpa(_: random.Random) -> Body:
    return Body(_scaled, layer=nn.Linear(WIDTH, 3 * WIDTH, bias=False))


def _spectrum(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    found = torch.fft.rfft(x.float(), dim=1) * torch.view_as_complex(body.layer.float())
    return torch.fft.irfft(found, n=TIME, dim=1).to(x.dtype)


def _fourier(_: random.Random) -> Body:
    return Body(_spectrum, layer=nn.Parameter(torch.randn(TIME // 2 + 1, WIDTH, 2) * 0.5))


def _overwriting(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    found = body.layer(x)
    found[:, 0] = found[:, 1] * 0.5
    found.add_(1).relu_()
    return found


def _own_in_place(_: random.Random) -> Body:
    return Body(_overwriting, layer=nn.Linear(WIDTH, WIDTH))


def _overwriting_input(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    x.mul_(0.9)
    return body.layer(x)


def _in_place(_: random.Random) -> Body:
    return Body(_overwriting_input, layer=nn.Linear(WIDTH, WIDTH))


class Centred(nn.Module):
    """Takes away a running mean, kept in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            self.mean = self.mean.lerp(x.detach().mean((0, 1)), 0.1)
        return (x - self.mean) * self.gain


def _buffers(_: random.Random) -> Body:
    return Body(_plain, layer=Centred())


def _weighted(chance: random.Random) -> Body:
    kind = chance.choice([parametrizations.weight_norm, parametrizations.spectral_norm])
    return Body(_plain, layer=kind(nn.Linear(WIDTH, WIDTH)))


def _again(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return checkpoint(body.layer, x, use_reentrant=False)


def _nested(_: random.Random) -> Body:
    return Body(_again, layer=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh()))


def _routed(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    scores = body.router(x).softmax(-1)
    best = scores.argmax(-1)
    found = torch.zeros_like(x)
    for place, expert in enumerate(body.layer):
        chosen = best == place
        if chosen.any():
            found[chosen] = expert(x[chosen]) * scores[chosen][:, place : place + 1]
    return found


def _experts(_: random.Random) -> Body:
    experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
    return Body(_routed, layer=experts, router=nn.Linear(WIDTH, 3))


def _lowered(body: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return body.layer(body.layer(x).tanh()).sigmoid().to(x.dtype)


def _half(_: random.Random) -> Body:
    return Body(_lowered, layer=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)))


BODIES: dict[str, Callable[[random.Random], Body]] = {
    "mlp": _mlp, "conv": _conv, "conv2d": _conv2d, "norm": _norm, "rnn": _rnn, "cell": _cell,
    "attention": _attention, "encoder": _encoder, "decoder": _decoder, "sdpa": _sdpa,
    "fourier": _fourier, "own in place": _own_in_place, "in place": _in_place,
    "buffers": _buffers, "weighted": _weighted, "nested": _nested, "experts": _experts,
    "half": _half,
}  # fmt: skip


class Block(nn.Module):
    """A body with a residual, a mix with the second tensor, and a result of some form."""

    def __init__(self, chance: random.Random, kind: str) -> None:
        super().__init__()
        self.norm = chance.choice([nn.LayerNorm(WIDTH), nn.Identity()])
        self.body = BODIES[kind](chance)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))
        self.residual = chance.random() < 0.7
        self.mixes = chance.choice(["no", "no", "once", "twice"])
        self.form = chance.choice(["tensor", "tensor", "tensor", "tuple", "dict"])

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> Result:
        other = x if memory is None else memory
        found = self.body(self.norm(x), other) * self.scale
        if self.mixes != "no":
            found = found + self.mix(other).tanh()
        if self.mixes == "twice":
            found = found * self.mix(other).sigmoid()
        if self.residual:
            found = found + x
        if self.form == "tuple":
            return found, found.detach().square(), torch.arange(3)
        if self.form == "dict":
            return {"x": found, "more": found.square().clamp(max=2)}
        return found
