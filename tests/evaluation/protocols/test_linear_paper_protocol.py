"""linear-paper: what is read from a ViT, that the heads learn as SGD does, and what the choosing heads never see."""

import dataclasses
import math

import pytest
import timm
import torch
from torch import nn

from coloured import coloured
from prosmin.data.subsets import held_out_mask
from prosmin.encoder import untrained
from prosmin.errors import ProsminError
from prosmin.evaluation.batches import evaluation_batches, training_batches
from prosmin.evaluation.context import Context
from prosmin.evaluation.options import Options
from prosmin.evaluation.probes import linear_sgd as linear_heads
from prosmin.evaluation.probes.linear_sgd import RATES, train_linear_heads
from prosmin.evaluation.protocols import linear_paper
from prosmin.models.vit import describe_probe, probe_features
from prosmin.training.schedules import cosine
from tiny_methods import tiny_method

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoder():
    return untrained(tiny_method("dino", vit=True))


@pytest.fixture(scope="module")
def pictures():
    return coloured(60)


def vit(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model(
            "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, num_heads=2, **options
        )
    return model.eval()


class TestWhatIsRead:
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    def outputs(self, model):
        """The tokens behind each block, caught by hooks, through the final norm."""
        caught = []
        hooks = [block.register_forward_hook(lambda *args: caught.append(args[2])) for block in model.blocks]
        with torch.no_grad():
            model(self.x)
            for hook in hooks:
                hook.remove()
            return [model.norm(tokens) for tokens in caught]

    def test_a_small_vit_gives_the_class_tokens_of_its_last_four_blocks(self):
        model = vit(embed_dim=24, depth=6, dynamic_img_size=True)
        expected = torch.cat([tokens[:, 0] for tokens in self.outputs(model)[-4:]], dim=1)
        with torch.no_grad():
            read = probe_features(model, self.x)
            torch.testing.assert_close(read, expected)
            torch.testing.assert_close(read[:, -24:], model(self.x))
        assert describe_probe(model) == "class tokens of the last 4 blocks"
        assert probe_features(vit(embed_dim=24, depth=2), self.x).shape == (2, 48)

    def test_from_vit_b_on_the_last_class_token_and_the_mean_patch(self):
        model = vit(embed_dim=768, depth=2)
        last = self.outputs(model)[-1]
        with torch.no_grad():
            torch.testing.assert_close(
                probe_features(model, self.x), torch.cat([last[:, 0], last[:, 1:].mean(1)], dim=1)
            )
        assert "mean of the patch tokens" in describe_probe(model)

    def test_other_networks_give_their_features(self):
        pooled = vit(embed_dim=24, depth=2, class_token=False, global_pool="avg")
        resnet = timm.create_model("test_resnet", num_classes=0).eval()
        for model in (pooled, resnet):
            with torch.no_grad():
                assert torch.equal(probe_features(model, self.x), model(self.x))
            assert describe_probe(model) == "features"


class TestHeads:
    def test_they_learn_as_autograd_and_torch_s_sgd_do(self, encoder, pictures):
        """An independent slow loop for one rate, the heads in float64 from the same float32 inputs."""
        held_out = torch.arange(60) % 10 == 0
        heads = linear_heads._train(encoder, pictures, pictures.labels, held_out, classes=3, epochs=2, seed=0)
        number, rate, size = 1, RATES[1], 16
        for kind, seen in enumerate((~held_out, torch.ones(60, dtype=torch.bool))):
            head = nn.Linear(48, 3).double()
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            optimizer = torch.optim.SGD(head.parameters(), lr=1.0, momentum=0.9)
            for step, views, index in training_batches(
                pictures, encoder.config.views, size=size, epochs=2, seed=0, device=CPU
            ):
                optimizer.param_groups[0]["lr"] = rate * size / 256 * cosine(step, 6, 1.0, 0.0)
                with torch.no_grad():
                    inputs = probe_features(encoder.method.get_submodule("online.backbone"), views).double()
                keep = seen[index]
                loss = nn.functional.cross_entropy(head(inputs[keep]), pictures.labels[index][keep])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            learned = heads[kind, number].double()
            torch.testing.assert_close(learned[:, :-1], head.weight.detach(), rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(learned[:, -1], head.bias.detach(), rtol=1e-4, atol=1e-6)

    def test_choosing_heads_never_see_the_held_out_labels(self, encoder, pictures):
        held_out = torch.arange(60) % 10 == 0
        other = pictures.labels.where(~held_out, (pictures.labels + 1) % 3)
        honest, changed = (
            linear_heads._train(encoder, pictures, labels, held_out, classes=3, epochs=1, seed=0)
            for labels in (pictures.labels, other)
        )
        assert torch.equal(honest[0], changed[0])
        assert not torch.equal(honest[1], changed[1])

    def test_a_rate_that_diverges_is_not_chosen(self, encoder, pictures, monkeypatch):
        monkeypatch.setattr(linear_heads, "RATES", (0.1, math.inf))
        answers = train_linear_heads(encoder, pictures, pictures, classes=3, epochs=2, seed=0)
        assert answers.settings["lr"] == 0.1
        monkeypatch.setattr(linear_heads, "RATES", (math.inf, math.inf))
        with pytest.raises(ProsminError, match="diverged at every learning rate"):
            train_linear_heads(encoder, pictures, pictures, classes=3, epochs=2, seed=0)


class TestProtocol:
    def test_it_learns_and_says_how(self, encoder, pictures):
        test = coloured(90, seed=1)
        blind = dataclasses.replace(test, labels=None)
        answers = train_linear_heads(encoder, pictures, blind, classes=3, epochs=10, seed=0)  # needs no test labels
        context = Context(encoder, {"train": pictures, "test": test}, options=Options(linear_epochs=10))
        result = linear_paper.run(context)
        assert result.settings == answers.settings
        assert result.settings["epochs"] == 10
        assert result.settings["features"] == "class tokens of the last 2 blocks"
        tried = result.settings["lr_tried"]
        assert tried[str(result.settings["lr"])] == min(tried.values())
        top1 = (answers.logits.argmax(1) == test.labels).double().mean().item()
        assert result.metrics["top1"] == pytest.approx(top1)
        assert top1 > 0.9
        assert result.metrics["temperature"] == answers.temperature
        # The answers are those of the head that learned from all of train at the chosen rate.
        held_out = held_out_mask(pictures.labels, pictures.keys, pictures.spec, seed=0)
        heads = linear_heads._train(encoder, pictures, pictures.labels, held_out, classes=3, epochs=10, seed=0)
        chosen = heads[1, RATES.index(answers.settings["lr"]), None]
        assert torch.equal(linear_heads._predict(chosen, test, encoder)[0], answers.logits)
        assert {"ece_floor", "ece_low", "ece_high", "adaptive_ece", "nll_calibrated"} <= result.metrics.keys()

    def test_answers_are_of_evaluation_views(self, encoder, pictures):
        heads = torch.randn(1, 3, 49, generator=torch.Generator().manual_seed(0))
        (views,) = evaluation_batches(pictures, encoder.config.views, device=CPU)
        with torch.no_grad():
            inputs = probe_features(encoder.method.get_submodule("online.backbone"), views)
            expected = inputs @ heads[0, :, :-1].T + heads[0, :, -1]
            torch.testing.assert_close(linear_heads._predict(heads, pictures, encoder)[0], expected)
