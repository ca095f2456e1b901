"""A device by its name, by its number, or whatever there is."""

from __future__ import annotations

import pytest
import torch

from tensorprobe.errors import ConfigError
from tensorprobe.replay.devices import open_device


def test_a_name_is_taken_as_torch_takes_it() -> None:
    assert open_device("cpu") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without an accelerator")
def test_without_an_accelerator_there_is_the_cpu_and_no_number() -> None:
    assert open_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="no accelerator here, so none with the number 3"):
        open_device("3")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_a_number_is_that_of_an_accelerator() -> None:
    assert open_device("auto") == open_device("0") == torch.device("cuda:0")


def test_a_device_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ConfigError, match="the device 'toaster' cannot be used here: ") as caught:
        open_device("toaster")
    assert "\n" not in str(caught.value)
