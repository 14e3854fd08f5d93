"""What every test stands on: how hard properties are searched, the shared data, and no way out through a proxy.

Rules. The default profile is deterministic, so that a failure is a change of the code and never of the dice;
`HYPOTHESIS_PROFILE=deep` searches anew each time. No profile has a deadline: time is measured by the benchmarks.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("ci", derandomize=True, max_examples=100, deadline=None, print_blob=True)
settings.register_profile("deep", derandomize=False, max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


@pytest.fixture(autouse=True, scope="session")
def _direct_connections() -> Iterator[None]:
    """Clients in tests talk to servers on this machine, whatever the environment says about proxies."""
    with pytest.MonkeyPatch.context() as environment:
        for name in PROXY_VARIABLES:
            environment.delenv(name, raising=False)
            environment.delenv(name.upper(), raising=False)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of recorded conversations, counts and errors; without it the test is skipped."""
    folder = Path(os.environ.get("TRANSOM_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no recorded data at {folder}; TRANSOM_SHARED_DATA says where it is")
    return folder
