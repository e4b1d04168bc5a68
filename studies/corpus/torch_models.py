"""The PyTorch models of the corpus: how each is built, and what it is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

Inputs = Callable[[int], dict[str, torch.Tensor]]
SCRIPT, DYNAMO = "torchscript", "dynamo"


@dataclass(frozen=True)
class Model:
    """A model of one family; `inputs(batch)` are its named arguments."""

    name: str
    family: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    exporters: tuple[str, ...] = (SCRIPT,)
    batch_axis: int = 0
    sequence_axis: int | None = None


def image(side: int = 224, name: str = "x") -> Inputs:
    """Return a colour image."""
    return lambda batch: {name: torch.randn(batch, 3, side, side)}


def tokens(length: int = 128, vocabulary: int = 1000, mask: bool = True) -> Inputs:
    """Return token ids, with an attention mask."""

    def make(batch: int) -> dict[str, torch.Tensor]:
        found = {"input_ids": torch.randint(5, vocabulary, (batch, length))}
        return found | (
            {"attention_mask": torch.ones(batch, length, dtype=torch.int64)} if mask else {}
        )

    return make


def first_output(inner: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """Return the model with `names` as positional arguments and its first output alone.

    The tracing exporter follows neither keyword arguments nor outputs that are no tensors.
    """
    scope: dict[str, Any] = {"inner_names": names}
    arguments = ", ".join(names)
    given = ", ".join(f"{name}={name}" for name in names)
    exec(  # the names are ours
        f"def forward(self, {arguments}):\n"
        f"    found = self.inner({given})\n"
        "    return found if hasattr(found, 'dim') else found[0]\n",
        scope,
    )

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        forward = scope["forward"]

    return First()


def _hf(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**settings)
        if hasattr(made, "use_cache"):
            made.use_cache = False
        return getattr(transformers, model)(made)

    return build


def _tv(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        if name in ("googlenet", "inception_v3"):
            settings.update(init_weights=False, aux_logits=False)
        return torchvision.models.get_model(name, weights=None, **settings)

    return build


def _tvseg(name: str) -> Callable[[], nn.Module]:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            import torchvision

            self.inner = torchvision.models.get_model(name, weights=None, weights_backbone=None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)["out"]

    return First


def _timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    return build


class _Language(nn.Module):
    """Two LSTM or GRU layers between an embedding and a decoder, as in the word-language model."""

    def __init__(self, cell: type[nn.RNNBase], width: int, vocabulary: int, first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = cell(width, width, 2, batch_first=first)  # type: ignore[call-arg]
        self.decode = nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.decode(self.rnn(self.embed(input_ids))[0])


class _Recommender(nn.Module):
    """An auto-encoder of 20,108 items with a hidden layer of 200."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Dropout(), nn.Linear(20108, 600), nn.Tanh(), nn.Linear(600, 200), nn.Tanh(),
            nn.Linear(200, 600), nn.Tanh(), nn.Linear(600, 20108),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Collaborative(nn.Module):
    """Neural collaborative filtering (NeuMF), MovieLens-1M."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(n, w) for n, w in ((6040, 32), (3706, 32), (6040, 128), (3706, 128))
        )
        self.layers = nn.Sequential(
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 32),
            nn.ReLU(),
        )
        self.out = nn.Linear(64, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        a, b, c, d = (t(user if i % 2 == 0 else item) for i, t in enumerate(self.tables))
        return self.out(torch.cat([a * b, self.layers(torch.cat([c, d], -1))], -1))


class _Translation(nn.Module):
    """The Transformer of "Attention is all you need": 6 + 6 layers of width 512."""

    def __init__(self, vocabulary: int = 9500, width: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.Transformer(width, 8, 6, 6, 2048, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.embed(source), self.embed(target)))


class _ResidualGenerator(nn.Module):
    """CycleGAN's generator with nine residual blocks."""

    def __init__(self, width: int = 64, blocks: int = 9) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.ReflectionPad2d(3),
            nn.Conv2d(3, width, 7),
            nn.InstanceNorm2d(width),
            nn.ReLU(),
        ]
        for factor in (1, 2):
            layers += [
                nn.Conv2d(width * factor, 2 * width * factor, 3, 2, 1),
                nn.InstanceNorm2d(2 * width * factor),
                nn.ReLU(),
            ]
        layers += [_Residual(4 * width) for _ in range(blocks)]
        for factor in (4, 2):
            layers += [
                nn.ConvTranspose2d(width * factor, width * factor // 2, 3, 2, 1, 1),
                nn.InstanceNorm2d(width * factor // 2),
                nn.ReLU(),
            ]
        layers += [nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width), nn.ReLU(),
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class _ActorCritic(nn.Module):
    """Four convolutions and an LSTM cell on 42 x 42 frames (A3C)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1),
            nn.ELU(),
            *(m for _ in range(3) for m in (nn.Conv2d(32, 32, 3, 2, 1), nn.ELU())),
        )
        self.cell = nn.LSTMCell(288, 256)
        self.critic, self.actor = nn.Linear(256, 1), nn.Linear(256, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, _ = self.cell(self.convolutions(x).flatten(1))
        return self.critic(h), self.actor(h)


class _Speech(nn.Module):
    """Deep Speech 2: two convolutions and five bidirectional LSTM layers."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.rnn = nn.LSTM(32 * 41, width, 5, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * width, 29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolutions(x)
        return self.out(self.rnn(y.flatten(1, 2).transpose(1, 2))[0])


class _UNet(nn.Module):
    """U-Net on 256 x 256 images."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(5)]

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
                nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
            )  # fmt: skip

        self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * b, b, 2, 2) for b in reversed(sizes[:-1]))
        self.join = nn.ModuleList(block(2 * b, b) for b in reversed(sizes[:-1]))
        self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for layer in self.down[:-1]:
            x = layer(x)
            skips.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return self.out(x)


class _Gan(nn.Module):
    """DCGAN's generator, 64 x 64."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [100, 512, 256, 128, 64, 3]
        layers: list[nn.Module] = []
        for index, (a, b) in enumerate(pairwise(sizes)):
            layers.append(
                nn.ConvTranspose2d(
                    a, b, 4, 1 if index == 0 else 2, 0 if index == 0 else 1, bias=False
                )
            )
            layers += [nn.BatchNorm2d(b), nn.ReLU(True)] if b != 3 else [nn.Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Lora(nn.Module):
    """A frozen BERT with trained low-rank terms next to each projection, as PEFT writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _hf("BertModel", "BertConfig", num_hidden_layers=4)()
        for parameter in self.inner.parameters():
            parameter.requires_grad_(False)
        for layer in self.inner.encoder.layer:
            for name in ("query", "value"):
                old = getattr(layer.attention.self, name)
                setattr(layer.attention.self, name, _LowRank(old))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)[0]


class _LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


def _resnet_cifar() -> nn.Module:
    import torchvision

    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _wave(batch: int) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(batch, 16000)}


_ALL = (SCRIPT, DYNAMO)
_RUNTIME = (*_ALL, "int8-dynamic", "ort-extended")
_TRAIN = (SCRIPT, "torchscript-train", "torchscript-batch8", DYNAMO)
_small = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1376,
    "vocab_size": 8000,
}

MODELS: tuple[Model, ...] = (
    Model("resnet50", "ResNet", _tv("resnet50"), image(), (*_TRAIN, "torchscript-half", "dynamo-fixed", "dynamo-train")),
    Model("resnet18-cifar", "ResNet", _resnet_cifar, image(32), (*_RUNTIME, "int8-static")),
    Model("resnet101", "ResNet", _tv("resnet101"), image()),
    Model("resnet152", "ResNet", _tv("resnet152"), image()),
    Model("alexnet", "AlexNet", _tv("alexnet"), image()),
    Model("vgg11", "VGG", _tv("vgg11"), image()),
    Model("vgg16", "VGG", _tv("vgg16"), image()),
    Model("vgg19", "VGG", _tv("vgg19"), image()),
    Model("vgg16-bn", "VGG", _tv("vgg16_bn"), image()),
    Model("wide-resnet50", "ResNet", _tv("wide_resnet50_2"), image()),
    Model("resnext50", "ResNet", _tv("resnext50_32x4d"), image()),
    Model("densenet121", "DenseNet", _tv("densenet121"), image(), (SCRIPT, "torchscript-train", DYNAMO)),
    Model("googlenet", "Inception", _tv("googlenet"), image()),
    Model("inception-v3", "Inception", _tv("inception_v3"), image(299)),
    Model("mobilenet-v2", "MobileNet", _tv("mobilenet_v2"), image(), (*_RUNTIME, "int8-static")),
    Model("mobilenet-v3", "MobileNet", _tv("mobilenet_v3_large"), image()),
    Model("shufflenet-v2", "ShuffleNet", _tv("shufflenet_v2_x1_0"), image(), _ALL),
    Model("squeezenet", "SqueezeNet", _tv("squeezenet1_1"), image()),
    Model("mnasnet", "MNASNet", _tv("mnasnet1_0"), image()),
    Model("efficientnet-b0", "EfficientNet", _tv("efficientnet_b0"), image(), _ALL),
    Model("efficientnet-v2-s", "EfficientNet", _tv("efficientnet_v2_s"), image()),
    Model("regnet", "RegNet", _tv("regnet_y_400mf"), image()),
    Model("convnext", "ConvNeXt", _tv("convnext_tiny"), image(), _ALL),
    Model("vit-b16", "ViT", _tv("vit_b_16"), image(), _ALL),
    Model("swin-t", "Swin", _tv("swin_t"), image(), _ALL),
    Model("maxvit", "MaxViT", _tv("maxvit_t"), image()),
    Model("fcn-resnet50", "FCN", _tvseg("fcn_resnet50"), image()),
    Model("deeplab-v3", "DeepLab", _tvseg("deeplabv3_resnet50"), image()),
    Model("r3d-18", "R3D", _tv("r3d_18"), lambda b: {"x": torch.randn(b, 3, 8, 112, 112)}),
    Model("timm-deit", "DeiT", _timm("deit_tiny_patch16_224"), image(), _RUNTIME),
    Model("timm-swin", "Swin", _timm("swin_tiny_patch4_window7_224"), image(), _ALL),
    Model("timm-mixer", "Mixer", _timm("mixer_s16_224"), image()),
    Model("timm-xcit", "XCiT", _timm("xcit_tiny_12_p16_224"), image()),
    Model("timm-cait", "CaiT", _timm("cait_xxs24_224"), image()),
    Model("timm-poolformer", "PoolFormer", _timm("poolformer_s12"), image()),
    Model("timm-mobilevit", "MobileViT", _timm("mobilevit_s"), image(256)),
    Model("timm-coat", "CoaT", _timm("coat_tiny"), image()),
    Model("timm-levit", "LeViT", _timm("levit_128"), image()),
    Model("timm-pvt", "PVT", _timm("pvt_v2_b0"), image()),
    Model("timm-hrnet", "HRNet", _timm("hrnet_w18_small"), image()),
    Model("timm-xception", "Xception", _timm("legacy_xception"), image(299)),
    Model("timm-inception-v4", "Inception", _timm("inception_v4"), image(299)),
    Model("timm-resnest", "ResNeSt", _timm("resnest14d"), image()),
    Model("timm-edgenext", "EdgeNeXt", _timm("edgenext_small"), image(256)),
    Model("timm-beit", "BEiT", _timm("beit_base_patch16_224"), image()),
    Model("timm-nasnet", "NASNet", _timm("nasnetalarge"), image(331)),
    Model("bert-base", "BERT", _hf("BertModel", "BertConfig"), tokens(), (*_TRAIN, "dynamo-fixed"), sequence_axis=1),
    Model("bert-large", "BERT", _hf("BertModel", "BertConfig", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096), tokens(), sequence_axis=1),
    Model("bert-mlm", "BERT", _hf("BertForMaskedLM", "BertConfig", num_hidden_layers=4), tokens(), sequence_axis=1),
    Model("roberta", "BERT", _hf("RobertaModel", "RobertaConfig", num_hidden_layers=4, pad_token_id=1), tokens(), sequence_axis=1),
    Model("distilbert", "BERT", _hf("DistilBertModel", "DistilBertConfig"), tokens(), _ALL, sequence_axis=1),
    Model("albert", "ALBERT", _hf("AlbertModel", "AlbertConfig", hidden_size=768, num_attention_heads=12, intermediate_size=3072), tokens(), sequence_axis=1),
    Model("electra", "ELECTRA", _hf("ElectraModel", "ElectraConfig"), tokens(), _RUNTIME, sequence_axis=1),
    Model("deberta-v2", "DeBERTa", _hf("DebertaV2Model", "DebertaV2Config", hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536, vocab_size=8000, relative_attention=True, pos_att_type=["p2c", "c2p"]), tokens(), sequence_axis=1),
    Model("xlnet", "XLNet", _hf("XLNetModel", "XLNetConfig", d_model=768, n_layer=12, n_head=12, d_inner=3072, vocab_size=32000), tokens(), sequence_axis=1),
    Model("gpt2", "GPT-2", _hf("GPT2LMHeadModel", "GPT2Config"), tokens(), _ALL, sequence_axis=1),
    Model("gpt-neo", "GPT-Neo", _hf("GPTNeoModel", "GPTNeoConfig", hidden_size=512, num_layers=4, num_heads=8, attention_types=[[["global", "local"], 2]], vocab_size=8000), tokens(), sequence_axis=1),
    Model("opt", "OPT", _hf("OPTModel", "OPTConfig", hidden_size=512, num_hidden_layers=4, num_attention_heads=8, ffn_dim=2048, vocab_size=8000, word_embed_proj_dim=512), tokens(), sequence_axis=1),
    Model("llama", "Llama", _hf("LlamaForCausalLM", "LlamaConfig", **_small), tokens(), _ALL, sequence_axis=1),
    Model("mistral", "Mistral", _hf("MistralModel", "MistralConfig", num_key_value_heads=2, **_small), tokens(), _ALL, sequence_axis=1),
    Model("qwen2", "Qwen2", _hf("Qwen2Model", "Qwen2Config", num_key_value_heads=2, **_small), tokens(), sequence_axis=1),
    Model("gemma", "Gemma", _hf("GemmaModel", "GemmaConfig", head_dim=64, num_key_value_heads=1, **_small), tokens(), sequence_axis=1),
    Model("bart", "BART", _hf("BartModel", "BartConfig", d_model=512, encoder_layers=3, decoder_layers=3, encoder_attention_heads=8, decoder_attention_heads=8, vocab_size=8000), tokens(), sequence_axis=1),
    Model("t5", "T5", _hf("T5Model", "T5Config", num_layers=3), lambda b: tokens()(b) | {"decoder_input_ids": torch.randint(5, 1000, (b, 32))}),
    Model("whisper", "Whisper", _hf("WhisperModel", "WhisperConfig", encoder_layers=2, decoder_layers=2), lambda b: {"input_features": torch.randn(b, 80, 3000), "decoder_input_ids": torch.randint(5, 1000, (b, 32))}),
    Model("wav2vec2", "wav2vec 2.0", _hf("Wav2Vec2Model", "Wav2Vec2Config", num_hidden_layers=4), _wave),
    Model("hf-vit", "ViT", _hf("ViTModel", "ViTConfig"), image(name="pixel_values"), _ALL),
    Model("hf-deit", "DeiT", _hf("DeiTModel", "DeiTConfig", hidden_size=192, num_attention_heads=3, intermediate_size=768), image(name="pixel_values")),
    Model("hf-swin", "Swin", _hf("SwinModel", "SwinConfig"), image(name="pixel_values")),
    Model("segformer", "SegFormer", _hf("SegformerModel", "SegformerConfig"), image(name="pixel_values")),
    Model("clip", "CLIP", _hf("CLIPModel", "CLIPConfig"), lambda b: tokens(77)(b) | {"pixel_values": torch.randn(b, 3, 224, 224)}),
    Model("lora-bert", "LoRA", _Lora, tokens(), _ALL, sequence_axis=1),
    Model("lstm-language", "LSTM", lambda: _Language(nn.LSTM, 200, 33278, False), lambda b: {"input_ids": torch.randint(0, 1000, (35, b))}, (SCRIPT, "torchscript-fixed", DYNAMO), batch_axis=1, sequence_axis=0),
    Model("gru-language", "GRU", lambda: _Language(nn.GRU, 256, 10000, True), lambda b: {"input_ids": torch.randint(0, 1000, (b, 35))}, sequence_axis=1),
    Model("translation", "Transformer", _Translation, lambda b: {"source": torch.randint(0, 9000, (b, 30)), "target": torch.randint(0, 9000, (b, 30))}, sequence_axis=1),
    Model("encoder", "Transformer", _Encoder, lambda b: {"x": torch.randn(b, 64, 256)}, _RUNTIME, sequence_axis=1),
    Model("recommender", "Auto-encoder", _Recommender, lambda b: {"x": torch.rand(b, 20108)}, _ALL),
    Model("ncf", "NCF", _Collaborative, lambda b: {"user": torch.randint(0, 3000, (b,)), "item": torch.randint(0, 3000, (b,))}),
    Model("cyclegan", "CycleGAN", _ResidualGenerator, image(256)),
    Model("a3c", "A3C", _ActorCritic, lambda b: {"x": torch.randn(b, 1, 42, 42)}),
    Model("deepspeech2", "DeepSpeech2", _Speech, lambda b: {"x": torch.randn(b, 1, 161, 300)}),
    Model("unet", "U-Net", _UNet, image(256)),
    Model("dcgan", "DCGAN", _Gan, lambda b: {"x": torch.randn(b, 100, 1, 1)}),
)  # fmt: skip
