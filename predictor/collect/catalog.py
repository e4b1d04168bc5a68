"""The models that are measured, by name; building them is left to the process that runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Libraries whose models are added where they can be imported.
LIBRARIES = ("torchvision", "timm", "transformers")

#: What a model reads: kinds of input by name, see `inputs` in `models`.
IMAGE, SMALL, TOKENS = "image224", "image32", "tokens"


@dataclass(frozen=True)
class Model:
    """One architecture. `build` is `module:function` with arguments, or `library:name`.

    `family` groups architectures that are alike: what is learned is tested on families left out.
    """

    name: str
    family: str
    build: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reads: str = IMAGE
    batches: tuple[int, ...] = (8, 32, 128)
    sequences: tuple[int, ...] = ()


#: Where functions that see are, other than in `vision`.
_MODULES = dict.fromkeys(("vit", "mixer", "convnext"), "mixing") | dict.fromkeys(
    ("UNet", "generator", "discriminator", "super_resolution", "autoencoder", "video"), "pictures"
)


def _see(name: str, family: str, function: str, /, reads: str = IMAGE, **arguments: Any) -> Model:  # noqa: ANN401
    batches = arguments.pop("batches", (8, 32, 128))
    module = _MODULES.get(function, "vision")
    return Model(name, family, f"{module}:{function}", arguments, reads, batches)


def _read(name: str, family: str, function: str, /, reads: str = TOKENS, **arguments: Any) -> Model:  # noqa: ANN401
    batches = arguments.pop("batches", (4, 16, 64))
    sequences = arguments.pop("sequences", (128, 512))
    return Model(name, family, f"sequence:{function}", arguments, reads, batches, sequences)


_SMALL: dict[str, Any] = {"reads": SMALL, "batches": (64, 256, 1024)}
_VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
_MOBILE2 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
_EFFICIENT = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip

PLAIN = (
    _see("resnet50", "resnet", "resnet", layers=(3, 4, 6, 3), bottleneck=True),
    _read("bert-base", "bert", "transformer", width=768, depth=12, heads=12),
    _read("lstm-lm", "lstm", "recurrent", sequences=(35, 128)),
    _see("vgg16", "vgg", "vgg", plan=_VGG16, batches=(8, 32, 96)),
    _see("mobilenet-v2", "mobilenet", "inverted", plan=_MOBILE2),
    _read("gpt-small", "gpt", "transformer", width=768, depth=12, heads=12, vocabulary=50257,
          causal=True, batches=(1, 4, 16), sequences=(256, 1024)),
    _read("speech", "deepspeech", "Speech", reads="sound", sequences=(200, 600)),
    _see("densenet121", "densenet", "densenet", layers=(6, 12, 24, 16), batches=(8, 32, 64)),
    Model("dlrm", "dlrm", "tables:Recommender", {}, "fields26", (256, 2048, 16384)),
    _see("unet", "unet", "UNet", batches=(2, 8, 24)),
    _see("vit-small", "vit", "vit"),
    _read("wavenet", "wavenet", "Waves", reads="sound", sequences=(500, 2000)),
    _see("alexnet", "alexnet", "alexnet", batches=(32, 128, 512)),
    _read("translation", "seq2seq", "Translation", sequences=(32, 128)),
    _see("efficientnet-b0", "efficientnet", "inverted", plan=_EFFICIENT, excite=True),
    _see("cyclegan-generator", "cyclegan", "generator", batches=(1, 4, 12)),
    _read("gru-lm", "gru", "recurrent", kind="gru", width=512, sequences=(35, 128)),
    _see("squeezenet", "squeezenet", "squeezenet", batches=(16, 64, 256)),
    Model("mlp", "mlp", "tables:multilayer", {}, "vector784", (128, 1024, 8192)),
    _see("convnext-tiny", "convnext", "convnext", batches=(4, 16, 64)),
    _see("lenet", "lenet", "lenet", **_SMALL),
    _read("conformer", "conformer", "Conformer", reads="sound", sequences=(200, 600)),
    _see("inception", "inception", "inception"),
    Model("pointnet", "pointnet", "tables:Points", {}, "points", (8, 32, 128), (1024,)),
    _see("shufflenet", "shufflenet", "shufflenet", batches=(16, 64, 256)),
    _read("textcnn", "textcnn", "TextConvolutions", batches=(16, 64, 256), sequences=(64, 256)),
    _see("mixer", "mixer", "mixer"),
    _see("dcgan-discriminator", "dcgan", "discriminator", reads="image64", batches=(32, 128, 512)),
    Model("graph-network", "gcn", "tables:GraphConvolutions", {}, "nodes128", (4, 32, 256)),
    _see("super-resolution", "edsr", "super_resolution", reads="image64", batches=(2, 8, 32)),
    Model("a3c", "a3c", "tables:Player", {}, "frames", (16, 128, 512)),
    _see("video", "c3d", "video", reads="clip", batches=(4, 16, 48)),
    Model("item-autoencoder", "autoencoder-items", "tables:items", {}, "vector20108",
          (64, 512, 4096)),
    _see("autoencoder", "autoencoder-images", "autoencoder", batches=(8, 64, 256)),
    Model("ncf", "ncf", "tables:Recommender",
          {"fields": 2, "rows": 200000, "hidden": 256, "products": False}, "fields2",
          (256, 4096, 65536)),
    _see("network-in-network", "nin", "network_in_network", **_SMALL),
    _read("bilstm-tagger", "lstm", "recurrent", both=True, width=256, outputs=50,
          sequences=(32, 128)),
    _see("resnet18-small", "resnet", "resnet", layers=(2, 2, 2, 2), small=True, classes=10,
         **_SMALL),
    _see("resnet18", "resnet", "resnet", layers=(2, 2, 2, 2), batches=(16, 64, 256)),
    _see("resnet101", "resnet", "resnet", layers=(3, 4, 23, 3), bottleneck=True),
    _see("resnext50", "resnext", "resnet", layers=(3, 4, 6, 3), bottleneck=True, groups=32,
         inner=2.0),
    _see("wide-resnet50", "resnet", "resnet", layers=(3, 4, 6, 3), bottleneck=True, inner=2.0),
    _see("se-resnet50", "senet", "resnet", layers=(3, 4, 6, 3), bottleneck=True, excite=True),
    _see("mobilenet-v1", "mobilenet", "mobilenet"),
    _see("vgg11-bn", "vgg", "vgg", plan=_VGG11, norm=True),
    _read("rnn-lm", "rnn", "recurrent", kind="rnn", width=512, sequences=(35, 128)),
    _read("bert-mini", "bert", "transformer", width=256, depth=4, heads=4, batches=(16, 64, 256)),
    _read("tiny-gpt", "gpt", "transformer", width=384, depth=6, heads=6, vocabulary=5000,
          causal=True, batches=(8, 32, 128), sequences=(128, 256)),
    _see("vit-base", "vit", "vit", width=768, heads=12),
    _read("tagger", "bert", "transformer", width=384, depth=6, heads=6, outputs=50),
)  # fmt: skip


def _library(library: str, *names: tuple[str, str], **options: Any) -> tuple[Model, ...]:  # noqa: ANN401
    return tuple(
        Model(f"{library}/{name}", family, f"{library}:{name}", **options) for name, family in names
    )


MODELS = {
    "": PLAIN,
    "torchvision": _library(
        "torchvision",
        ("resnet50", "resnet"), ("googlenet", "inception"), ("densenet169", "densenet"),
        ("regnet_y_1_6gf", "regnet"), ("swin_t", "swin"), ("mnasnet1_0", "mnasnet"),
        ("shufflenet_v2_x1_0", "shufflenet"), ("mobilenet_v3_large", "mobilenet"),
        ("efficientnet_v2_s", "efficientnet"), ("maxvit_t", "maxvit"),
    ),
    "timm": _library(
        "timm",
        ("deit_small_patch16_224", "vit"), ("ghostnet_100", "ghostnet"), ("dla34", "dla"),
        ("hrnet_w18", "hrnet"), ("res2net50_26w_4s", "res2net"), ("coat_tiny", "coat"),
        ("dpn68", "dpn"), ("vovnet39a", "vovnet"), ("repvgg_a2", "repvgg"),
        ("poolformer_s12", "poolformer"),
    ),
    "transformers": _library(
        "transformers",
        ("bert", "bert"), ("gpt2", "gpt"), ("distilbert", "bert"), ("t5", "seq2seq"),
        ("roberta", "bert"), ("electra", "bert"), ("opt", "gpt"), ("mobilebert", "mobilebert"),
        reads=TOKENS, batches=(2, 8, 32), sequences=(128, 512),
    ),
}  # fmt: skip
