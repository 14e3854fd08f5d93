"""What a test needs and this machine may lack.

Rules. A test whose need is not met says so and is skipped, never passed over in silence; where CI=true it fails,
because there everything is installed.
"""

import os
from typing import NoReturn

import pytest


def lacks(what: str, remedy: str) -> NoReturn:
    """End the test: `what` is not there, `remedy` says how to get it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} ({remedy}); .ci/run has to install it")
    pytest.skip(f"{what} ({remedy})")
