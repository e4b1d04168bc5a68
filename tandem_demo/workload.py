"""The demo's twelve jobs, made from the nine graphs that the `onnx` package ships.

What a job is said to use is predicted from its graph by the predictor. What it does use on the
simulated GPUs stands here: chosen by hand (no GPU has run these), with the memory of each job
below the bound that is predicted for it, and utilisations of training loops that wait for data.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.client import Object

NAMESPACE = "demo"
GIB = 1 << 30

#: A file of the `onnx` package -> the name under which it is pushed.
GRAPHS = {
    "light_bvlc_alexnet.onnx": "alexnet",
    "light_densenet121.onnx": "densenet121",
    "light_inception_v1.onnx": "inception-v1",
    "light_inception_v2.onnx": "inception-v2",
    "light_resnet50.onnx": "resnet50",
    "light_shufflenet.onnx": "shufflenet",
    "light_squeezenet.onnx": "squeezenet",
    "light_vgg19.onnx": "vgg19",
    "light_zfnet512.onnx": "zfnet512",
}


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A training job of one worker on one GPU.

    `solo_s` is how long it takes with a GPU to itself, in seconds of the demo's clock;
    `utilisation` (percent) is how busy it keeps the GPU then. Memory is `memory_gib`, and in one
    sixth of the time `peak_extra_gib` more.
    """

    name: str
    model: str
    batch_size: int
    submit_s: float
    solo_s: float
    utilisation: int
    memory_gib: float
    peak_extra_gib: float
    exclusive: bool = False

    def pod(self) -> Object:
        """Return the pod as its user writes it."""
        annotations = {names.MODEL: self.model, names.BATCH_SIZE: str(self.batch_size)}
        if self.exclusive:
            annotations[names.EXCLUSIVE] = "true"
        return {
            "metadata": {"name": self.name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "train",
                        "image": "example.com/train:1",
                        "resources": {
                            "requests": {"cpu": "2", "memory": "8Gi"},
                            "limits": {names.RESOURCE: "1"},
                        },
                    }
                ],
            },
        }


JOBS = (
    DemoJob("resnet50-a", "resnet50", 32, 0.0, 18, 62, 4.2, 0.9),
    DemoJob("squeezenet-a", "squeezenet", 64, 0.5, 12, 38, 2.2, 0.4),
    DemoJob("vgg19", "vgg19", 16, 1.0, 20, 74, 4.0, 0.4),
    DemoJob("alexnet", "alexnet", 128, 1.5, 10, 45, 2.6, 0.2),
    DemoJob("resnet50-b", "resnet50", 64, 2.0, 16, 68, 6.9, 1.7),
    DemoJob("inception-v1", "inception-v1", 64, 2.5, 16, 52, 2.9, 0.5),
    DemoJob("resnet50-final", "resnet50", 64, 3.0, 12, 70, 7.0, 1.7, exclusive=True),
    DemoJob("densenet121", "densenet121", 16, 3.5, 20, 66, 4.3, 1.0),
    DemoJob("shufflenet", "shufflenet", 64, 4.0, 17, 34, 3.0, 0.6),
    DemoJob("inception-v2", "inception-v2", 32, 4.5, 18, 58, 3.1, 0.6),
    DemoJob("zfnet512", "zfnet512", 64, 5.0, 12, 48, 3.3, 0.3),
    DemoJob("squeezenet-b", "squeezenet", 128, 5.5, 14, 41, 3.4, 0.7),
)


def graph_files() -> dict[str, Path]:
    """Return the path of each graph by the name under which it is pushed."""
    spec = find_spec("onnx")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    files = {
        name: folder / "backend" / "test" / "data" / "light" / file
        for file, name in GRAPHS.items()
        if folder
    }
    missing = [str(path) for path in files.values() if not path.is_file()]
    if missing or not files:
        raise TandemError(
            f"The onnx package has no graph {missing[0] if missing else 'at all'}.",
            "Install the locked dependencies again: make clean setup",
        )
    return files
