"""An encoder in a folder: saving, loading, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from coloured import coloured
from prosmin.encoder import load, untrained
from prosmin.encoder.file import read_card
from prosmin.encoder.foreign import is_foreign
from prosmin.errors import ProsminError
from prosmin.export import export
from prosmin.files import file_hash
from published_layouts import timm_weights
from tiny_methods import tiny_method


class TestFolder:
    def test_loading_restores_encoder_and_reference(self, encoder, images, tmp_path):
        others = coloured(30, seed=1, side=40).images
        expected = encoder.fit_reference(others).ood_score(images)
        folder = encoder.save(tmp_path / "new" / "saved")
        names = {"background.safetensors", "encoder.json", "encoder.safetensors", "reference.safetensors"}
        assert {path.name for path in folder.iterdir()} == names
        for place in (folder, str(folder), folder / "encoder.safetensors"):
            again = load(place).to("cpu")
            assert torch.equal(again.ood_score(images), expected)
            for one, other in zip(again(images), encoder(images), strict=True):
                assert torch.equal(one, other)
        assert torch.equal(again.untrained().features(images), encoder.features(images))  # this one was never trained

    def test_saving_again_replaces_only_the_reference(self, tmp_path, images, belonging):
        encoder = untrained(tiny_method("prosmin"))
        folder = encoder.save(tmp_path)
        assert not (folder / "reference.safetensors").exists()
        with pytest.raises(ProsminError, match=r"^ood_score needs a reference: .*fit_reference"):
            load(folder).ood_score(images)
        before = file_hash(folder / "encoder.safetensors")
        expected = load(folder).fit_reference(belonging)
        expected.save(folder)
        assert file_hash(folder / "encoder.safetensors") == before
        assert torch.equal(load(folder).ood_score(images), expected.ood_score(images))

    def test_the_card_has_the_precision_of_the_file(self, tmp_path, images, belonging):
        """float16 stays float16, also beside a new reference, as long as every number fits float16."""
        export(
            untrained(tiny_method("prosmin")).save(tmp_path / "wide"),
            tmp_path / "half",
            format="safetensors",
            half=True,
        )
        half = load(tmp_path / "half")
        before = file_hash(tmp_path / "half" / "encoder.safetensors")
        half.fit_reference(belonging).save(tmp_path / "half")  # the same encoder
        half.save(tmp_path / "copy")
        assert file_hash(tmp_path / "copy" / "encoder.safetensors") == before == load(tmp_path / "copy").card["hash"]
        assert load(tmp_path / "copy").card == read_card(tmp_path / "half")
        assert torch.equal(load(tmp_path / "half").ood_score(images), half.ood_score(images))

        matrix = _matrix(half.method.state_dict())
        half.method.get_parameter(matrix)[0, 0] = 1 / 3
        half.save(tmp_path / "changed")
        tensors = load_file(tmp_path / "changed" / "encoder.safetensors")
        assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} == {torch.float32}
        assert float(tensors[matrix][0, 0]) == pytest.approx(1 / 3, rel=1e-7)  # float16 would leave 0.3333
        assert not {"precision", "deviation"} & read_card(tmp_path / "changed").keys()

        narrow = untrained(tiny_method("prosmin"))
        narrow.method.bfloat16()
        assert read_card(narrow.save(tmp_path / "narrow"))["precision"] == "bfloat16"
        assert "precision" not in read_card(tmp_path / "wide")

    def test_another_encoder_is_not_overwritten(self, encoder, tmp_path):
        encoder.save(tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(ProsminError, match="another encoder"):
            untrained(tiny_method("prosmin", training__seed="1")).save(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_a_reference_of_other_weights_is_not_used_but_named(self, tmp_path, images, belonging):
        one, other = (untrained(tiny_method("prosmin", training__seed=seed)) for seed in "01")
        one.fit_reference(belonging).save(tmp_path / "one")
        other.save(tmp_path / "other")
        (tmp_path / "one" / "reference.safetensors").rename(tmp_path / "other" / "reference.safetensors")
        with pytest.raises(ProsminError, match=r"other/reference\.safetensors .*another encoder: .*fit_reference"):
            load(tmp_path / "other").ood_score(images)
        assert load(tmp_path / "other").fit_reference(belonging).ood_score(images).shape == (5,)

    def test_a_changed_reference_is_refused(self, encoder, tmp_path, belonging):
        encoder.fit_reference(belonging).save(tmp_path)
        file = tmp_path / "reference.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(ProsminError, match=r"reference\.safetensors was changed"):
            load(tmp_path)
        file.write_bytes(whole[:50])
        with pytest.raises(ProsminError, match=r"reference\.safetensors cannot be loaded"):
            load(tmp_path)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda tensors, name: tensors.update({name: tensors[name][:-1]}), r"is \(31, \d+\), not \(32, \d+\)\."),
            (lambda tensors, name: tensors.pop(name), "is missing"),
            (lambda tensors, name: tensors.update(more=torch.zeros(1)), "more is not part"),
        ],
    )
    def test_weights_that_do_not_fit_the_card_are_refused(self, encoder, tmp_path, change, match):
        encoder.save(tmp_path)
        tensors = load_file(tmp_path / "encoder.safetensors")
        change(tensors, _matrix(tensors))
        save_file(tensors, tmp_path / "encoder.safetensors")
        with pytest.raises(ProsminError, match=r"encoder\.safetensors .*changed"):
            load(tmp_path)
        card = read_card(tmp_path) | {"hash": file_hash(tmp_path / "encoder.safetensors")}
        (tmp_path / "encoder.json").write_text(json.dumps(card))
        with pytest.raises(ProsminError, match=match) as refusal:
            load(tmp_path)
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize(
        ("card", "match"),
        [
            ("{", "cannot be read"),
            ("[]", "not the card"),
            ('{"hash": "x"}', "not the card"),
            ('{"hash": "x", "encoder": "x", "format": 2}', r"format 2; .*up to 1"),
        ],
    )
    def test_a_damaged_card_is_refused(self, encoder, tmp_path, card, match):
        encoder.save(tmp_path)
        (tmp_path / "encoder.json").write_text(card)
        with pytest.raises(ProsminError, match=match):
            load(tmp_path)

    def test_other_paths_are_refused(self, tmp_path):
        with pytest.raises(ProsminError, match=r"nowhere is not a run folder.*Encoder\.save"):
            load(tmp_path / "nowhere")
        (tmp_path / "x.pth").write_bytes(b"")
        with pytest.raises(ProsminError, match=r"timm:NAME@.*x\.pth"):
            load(tmp_path / "x.pth")
        (tmp_path / "encoder.safetensors").write_bytes(b"")
        with pytest.raises(ProsminError, match=r"encoder\.safetensors but not its card encoder\.json"):
            load(tmp_path / "encoder.safetensors")

    def test_a_folder_without_a_card(self, encoder, tmp_path):
        """Continuing to train is right for an unfinished run, and wrong for any other folder."""
        begun = tmp_path / "runs" / "begun"
        begun.mkdir(parents=True)
        (begun / "config.yaml").write_text("")
        with pytest.raises(ProsminError, match=r"begun has not finished.*`prosmin pretrain --out .*begun`"):
            load(begun)
        encoder.save(tmp_path / "runs" / "done")
        (tmp_path / "runs" / "notes").mkdir()
        with pytest.raises(ProsminError, match=r"runs is not a run folder.*one of them: .*runs/begun, .*runs/done\.$"):
            load(tmp_path / "runs")
        (tmp_path / "runs" / "notes" / "a.txt").write_text("")
        with pytest.raises(ProsminError, match=r"notes is not a run folder.*encoder\.json(?!.*continues)"):
            load(tmp_path / "runs" / "notes")

    def test_a_saved_encoder_of_timm_does_not_need_its_file(self, images, belonging, tmp_path):
        file = timm_weights(tmp_path)
        encoder = load(f"timm:test_vit@{file}").fit_reference(belonging)
        assert is_foreign(encoder.card["encoder"])
        expected = encoder(images), encoder.ood_score(images), encoder.untrained().features(images)
        folder = encoder.save(tmp_path / "saved")
        file.unlink()
        again = load(folder)
        assert again(images).scale is None
        assert torch.equal(again(images).features, expected[0].features)
        assert torch.equal(again.ood_score(images), expected[1])
        assert torch.equal(again.untrained().features(images), expected[2])
        assert again.config.views == encoder.config.views


def _matrix(tensors: dict[str, torch.Tensor]) -> str:
    """A matrix with 32 rows, whatever the network calls it."""
    return next(name for name, tensor in tensors.items() if tensor.ndim == 2 and len(tensor) == 32)


def test_load_takes_only_paths_and_names():
    with pytest.raises(ProsminError, match=r"NoneType; allowed: "):
        load(None)
