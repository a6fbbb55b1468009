"""What every test may use."""

from __future__ import annotations

import os
import signal

import pytest

pytest_plugins = ["tests.helpers.tiny"]

# Messages name the command that the user typed. The tests compare them with this one.
os.environ["COURSE_COMMAND"] = "python3 course.py"

# A shell that starts the tests in the background makes them and their children deaf to Ctrl-C, which some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run the long variants: ten times the random configurations"
    )


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the long variants were asked for."""
    return bool(request.config.getoption("--full"))
