"""For all tests, those in docstrings and in the README too."""

from collections.abc import Iterator

import pytest
import torch

from wildtta.recipes import _RECIPES

# Small tensors: more threads only get in each other's way.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """A method that a test registers is gone after it."""
    before = dict(_RECIPES)
    yield
    _RECIPES.clear()
    _RECIPES.update(before)
