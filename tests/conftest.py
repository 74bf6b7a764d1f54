"""What every test needs: no network, one thread, fixed seeds, and `--slow` for the long ones."""

import os
import random

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports a Hugging Face library
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests that need a real model or many seconds")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: give --slow to run it")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def seeds() -> None:
    """The same random numbers, and one thread, for a test whatever ran before it."""
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
