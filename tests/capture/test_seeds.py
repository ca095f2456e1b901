"""`seed_all`: everything random is fixed, and dropout can be turned off."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import dropout as imported_before

from tensorprobe import seed_all
from tensorprobe.errors import ConfigError


@pytest.fixture(autouse=True)
def _settings_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONHASHSEED", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    yield
    cudnn.deterministic, cudnn.benchmark = before
    seed_all()


def draw() -> tuple[Any, ...]:
    return random.random(), np.random.rand(), torch.rand(1).item(), nn.Linear(2, 2).weight.tolist()


def test_the_same_seed_gives_the_same_numbers() -> None:
    seed_all(5)
    first = draw()
    seed_all(5)
    assert draw() == first
    seed_all(6)
    assert draw() != first
    assert os.environ["PYTHONHASHSEED"] == "6"


def test_without_arguments_the_seed_is_1234() -> None:
    seed_all()
    first = torch.rand(1)
    torch.manual_seed(1234)
    assert torch.equal(first, torch.rand(1))


def test_mode_asks_for_deterministic_algorithms() -> None:
    seed_all(mode=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    seed_all(mode=False)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("benchmark", [True, False])
def test_without_mode_cudnn_is_as_it_was_before(benchmark: bool) -> None:
    cudnn = torch.backends.cudnn
    cudnn.deterministic, cudnn.benchmark = False, benchmark
    seed_all(mode=True)
    seed_all(mode=True)
    assert cudnn.deterministic and not cudnn.benchmark
    seed_all()
    assert (cudnn.deterministic, cudnn.benchmark) == (False, benchmark)
    # What the user sets meanwhile stays.
    seed_all(mode=True)
    cudnn.benchmark = True
    seed_all()
    assert cudnn.deterministic and cudnn.benchmark


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": "1"}, "seed_all: seed is '1', wanted a number from 0 to 4294967295"),
        ({"seed": True}, "seed_all: seed is True, wanted a number from 0 to 4294967295"),
        ({"seed": -1}, "seed_all: seed is -1, wanted a number from 0 to 4294967295"),
        ({"seed": 2**32}, "seed_all: seed is 4294967296, wanted a number from 0 to 4294967295"),
        ({"mode": 1}, "seed_all: mode is 1, wanted True or False"),
        ({"rm_dropout": "yes"}, "seed_all: rm_dropout is 'yes', wanted True or False"),
    ],
)
def test_an_argument_of_another_type_is_refused(arguments: Any, message: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(ConfigError) as caught:
        seed_all(**arguments)
    assert str(caught.value) == message
    assert torch.equal(before, torch.get_rng_state())


DROPOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: functional.dropout(x, 0.5),
    lambda x: functional.dropout(x.clone(), 0.5, inplace=True),
    lambda x: functional.dropout1d(x[0], 0.5),
    lambda x: functional.dropout2d(x, 0.5),
    lambda x: functional.dropout3d(x[None], 0.5),
    lambda x: functional.alpha_dropout(x, 0.5, training=True),
    lambda x: functional.feature_alpha_dropout(x, 0.5, training=True),
    lambda x: imported_before(x, 0.5),
    lambda x: torch.dropout(x, 0.5, True),
    lambda x: torch.alpha_dropout(x, p=0.5, train=True),
    nn.Dropout(0.5),
    nn.Dropout(0.5, inplace=False),
    nn.Dropout2d(0.5),
    nn.AlphaDropout(0.5),
    nn.FeatureAlphaDropout(0.5),
]


@pytest.mark.parametrize("apply", DROPOUTS)
def test_every_dropout_passes_its_input_through(
    apply: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.rand(2, 3, 4, 4) + 1
    seed_all(rm_dropout=True)
    before = torch.get_rng_state()
    assert torch.equal(apply(x).reshape(-1), x.reshape(-1)[: apply(x).numel()])
    assert torch.equal(before, torch.get_rng_state())
    seed_all(rm_dropout=False)
    assert not torch.equal(apply(x).reshape(-1), x.reshape(-1)[: apply(x).numel()])


@pytest.mark.parametrize("keyword", [True, False])
def test_attention_drops_nothing(keyword: bool) -> None:
    query = torch.rand(1, 1, 4, 8)

    def attend() -> torch.Tensor:
        if keyword:
            return functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
        return functional.scaled_dot_product_attention(query, query, query, None, 0.5)

    expected = functional.scaled_dot_product_attention(query, query, query)
    seed_all(rm_dropout=True)
    assert torch.equal(attend(), expected)
    seed_all()
    assert not torch.equal(attend(), expected)


def test_whole_modules_drop_nothing() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    x = torch.rand(2, 3, 8)
    seed_all(rm_dropout=True)
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules_drop_nothing_between_their_layers(kind: Any) -> None:
    module = kind(4, 4, num_layers=2, dropout=0.9)
    x = torch.rand(5, 2, 4)
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3])
    seed_all(rm_dropout=True)
    assert torch.equal(module(x)[0], module(x)[0])
    assert torch.equal(module(packed)[0].data, module(packed)[0].data)
    seed_all()
    assert not torch.equal(module(x)[0], module(x)[0])


def test_nothing_of_torch_stays_replaced() -> None:
    before = torch.dropout, functional.scaled_dot_product_attention, dict(vars(torch._VF))
    seed_all(rm_dropout=True)
    seed_all(rm_dropout=True)
    assert torch.dropout is not before[0]
    seed_all()
    after = torch.dropout, functional.scaled_dot_product_attention, dict(vars(torch._VF))
    assert after == before
