from __future__ import annotations

from collections.abc import Iterator

import pytest

from predictor.service.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as started:
        yield started
