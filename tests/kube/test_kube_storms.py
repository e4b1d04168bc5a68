"""An API server in trouble is asked at most once in 4 s for a resource, at the pace of the product.

12 s here; in `make chaos` as long as two minutes.
"""

import os
import time

import pytest
from fake_api import FakeApi, status

from tandem.kube.client import KubeClient
from tandem.kube.pace import Pace
from tandem.kube.reflector import Reflector
from tandem.kube.resource import PODS

pytestmark = [pytest.mark.slow]

STORM_S = max(12.0, 120.0 * float(os.environ.get("TANDEM_CHAOS", "0")))
EMPTY = {"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": []}


@pytest.mark.parametrize(
    ("code", "reason"), [(410, "Expired"), (500, "InternalError"), (503, "ServiceUnavailable")]
)
def test_a_storm_is_met_with_few_requests(code, reason):
    def handler(request):
        if code == 410 and not request.is_watch:
            return 200, EMPTY
        return status(code, reason)

    api = FakeApi(handler)
    client = KubeClient.with_token(api.host, "t", None)
    reflector = Reflector(client, PODS, lambda *_: None)
    began = time.monotonic()
    reflector.start()
    try:
        time.sleep(STORM_S)
        elapsed_s, made = time.monotonic() - began, len(api.requests)
    finally:
        reflector.stop()
        client.close()
        api.close()
    print(f"{made} requests in {elapsed_s:.0f} s of {code}")
    # A list and the watch that follows it may come at once.
    assert 2 <= made <= elapsed_s / Pace().request_interval_s + 2
