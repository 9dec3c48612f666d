"""Options of the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is no fault of an input
settings.register_profile("mmrl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mmrl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--examples",
        type=Path,
        default=Path(__file__).parent / "worked_examples",
        help="folder of worked examples that tests/test_worked_examples.py runs",
    )
