import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_api import FakeApi


@pytest.fixture
def serve():
    servers = []

    def start(handler):
        servers.append(FakeApi(handler))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
