"""Where the head is in timm's, Transformers' and peft's models; one pass of LSAM equals two, bit for bit, on each."""

import pytest
import torch
import transformers as hf
from image_models import import_timm
from peft import LoraConfig, get_peft_model
from tiny import VOCABULARY, classifier, language_model
from torch import nn
from torch.nn.functional import cross_entropy

from samphire.optim import SharpnessAware, last_layer, lsam
from samphire.optim.scopes import find_head

# peft asks transformers for a name that is on its way out
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
timm = import_timm()
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3,
        "intermediate_size": 16, "max_position_embeddings": 16, "pad_token_id": 0}  # fmt: skip
VIT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 32,
       "patch_size": 16, "num_labels": 3, "hidden_dropout_prob": 0.2}  # fmt: skip


def distilbert():
    sizes = {"vocab_size": VOCABULARY, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "num_labels": 3}
    return hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**sizes, pad_token_id=0))


def llama(**settings):
    sizes = {k: v for k, v in TEXT.items() if k != "num_labels"}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, attention_dropout=0.2, tie_word_embeddings=False, **settings))


def convnext():
    return hf.ConvNextForImageClassification(
        hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=3, drop_path_rate=0.3)
    )


def resnet():
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}
    return hf.ResNetForImageClassification(hf.ResNetConfig(**sizes))


def swin():
    sizes = {
        "image_size": 32,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 4,
    }
    return hf.SwinForImageClassification(hf.SwinConfig(**sizes, num_labels=3, drop_path_rate=0.3))


def lora(target, model=classifier, **settings):
    return get_peft_model(model(), LoraConfig(r=2, lora_dropout=0.2, target_modules=target, **settings))


class ConvHead(nn.Module):
    """Squeeze and excitation by Linear layers, then a 1x1 convolution that classifies."""

    def __init__(self, kernel=1):
        super().__init__()
        self.body, self.excite = nn.Conv2d(3, 8, 3, 8), nn.Linear(8, 8)
        self.classify = nn.Conv2d(8, 3, kernel)

    def forward(self, x):
        x = self.body(x)
        return self.classify(x * self.excite(x.mean((2, 3)))[:, :, None, None])


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.digit, self.color = nn.Linear(3, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x):
        return self.color(self.body(x.mean((2, 3))))


def text(model):
    torch.manual_seed(1)
    return model(input_ids=torch.randint(1, VOCABULARY, (4, 6))).logits


def image(model):
    torch.manual_seed(1)
    out = model(torch.randn(4, 3, 32, 32))
    return getattr(out, "logits", out)


def timm_model(name, **settings):
    return lambda: timm.create_model(name, num_classes=3, **settings)


FOUND = {  # the model, how it is called, the name of its head
    "timm vit": (timm_model("vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=12, drop_path_rate=0.3), image, "head"),
    "timm convnext": (timm_model("convnext_atto", depths=(1, 1, 1, 1), dims=(4, 4, 8, 8), drop_path_rate=0.3), image, "head.fc"),
    "timm resnet": (timm_model("resnet18", drop_rate=0.2), image, "fc"),
    "timm mobilenet": (timm_model("mobilenetv3_small_050", drop_rate=0.2, drop_path_rate=0.3), image, "classifier"),
    "timm efficientnet": (timm_model("efficientnet_lite0", drop_path_rate=0.3), image, "classifier"),
    "ViT": (lambda: hf.ViTForImageClassification(hf.ViTConfig(**VIT)), image, "classifier"),
    "ConvNeXt": (convnext, image, "classifier"),
    "ResNet": (resnet, image, "classifier.1"),
    "Swin": (swin, image, "classifier"),
    "BERT": (classifier, text, "classifier"),
    "DistilBERT": (distilbert, text, "classifier"),
    "RoBERTa": (lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**TEXT)), text, "classifier.out_proj"),
    "untied Llama": (llama, text, "lm_head"),
    "LoRA, head saved beside": (
        lambda: lora(["query", "value"], task_type="SEQ_CLS"), text, "base_model.model.classifier.modules_to_save.default",
    ),
    "LoRA on the head": (lambda: lora(["query", "classifier"]), text, "base_model.model.classifier"),
    "1x1 convolution": (ConvHead, image, "classify"),
}  # fmt: skip


def loss_of(out):
    """Cross entropy over classes, which are last in texts and second in images."""
    out = out.flatten(0, 1) if out.ndim == 3 else out
    return cross_entropy(out, (torch.arange(len(out)) % 3).view(-1, *[1] * (out.ndim - 2)).expand(-1, *out.shape[2:]))


def train(make, forward, one_pass):
    torch.manual_seed(0)
    model = make().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = SharpnessAware(model, torch.optim.SGD(trained, lr=0.1, momentum=0.9), lsam(0.2))
    last = last_layer(model)
    losses = []
    for _ in range(2):
        once = last.one_pass(lambda: forward(model), loss_of)
        twice = lambda p: p.backward(loss_of(forward(model))) or p.loss
        losses.append(float(opt.step(once if one_pass else twice)))
        losses.append(float(opt.last.perturbed_loss))
    return last.name, model.state_dict(), losses


ROUNDS = {"Swin": 1e-7}  # its attention takes another kernel where autograd does not record


@pytest.mark.parametrize("model", FOUND)
def test_the_head_is_found_and_one_pass_equals_two(model):
    make, forward, name = FOUND[model]
    once, twice = train(make, forward, True), train(make, forward, False)
    assert once[0] == name
    assert once[2] == twice[2]
    torch.testing.assert_close(once[1], twice[1], rtol=0, atol=ROUNDS.get(model, 0))
    assert once[2][0] != once[2][1]  # the head has moved


def deit():
    return hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**VIT))


def pretraining():
    return hf.BertForPreTraining(hf.BertConfig(**TEXT, tie_word_embeddings=False))


ASKED = {
    "two heads": (TwoHeads, "TwoHeads has 2 layers that may be its head, 'digit', 'color'; say which, as in head='color'"),
    "distilled ViT": (deit, "2 layers that may be its head, 'cls_classifier', 'distillation_classifier'"),
    "timm's distilled ViT": (
        timm_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1, embed_dim=12),
        "2 layers that may be its head, 'head', 'head_dist'",
    ),
    "BERT before fine-tuning": (pretraining, "2 layers that may be its head, 'cls.predictions.decoder', 'cls.seq_rel"),
    "a convolution after the last Linear": (
        lambda: ConvHead(3),
        r"the last layer of ConvHead, 'classify', is a Conv2d with a kernel of \(3, 3\) and comes after its last Linear "
        "layer, 'excite'; name the head, as in head='classify'",
    ),
    "tied GPT-2": (language_model, "the head 'lm_head' is tied: it shares its weight with 'transformer.wte.weight'"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), ASKED.values(), ids=ASKED)
def test_where_it_is_not_sure_it_asks(make, message):
    model = make()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        SharpnessAware(model, base, lsam())
    with pytest.raises(ValueError, match=message):
        last_layer(model)


def test_the_answer_is_taken():
    model = TwoHeads()
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), lsam(0.2, head="color"))
    last = last_layer(model, "color")
    opt.step(last.one_pass(lambda: image(model), lambda out: cross_entropy(out, torch.arange(4) % 2)))
    assert float(opt.last.radius) == pytest.approx(0.2)
    assert find_head(language_model()) == "lm_head"  # to read its inputs, a tied head is as good as any
    with pytest.raises(ValueError, match="no module named 'colour'; did you mean 'color'"):
        last_layer(model, "colour")
