"""The images protocol: neighbours, the map, thumbnails and attention, each against something computed otherwise."""

import dataclasses
import io

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from prosmin import config as configs
from prosmin.data.image_sets import Pictures, load_pictures, pack
from prosmin.encoder import untrained
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.evaluation.context import Context
from prosmin.evaluation.protocols import pictures
from prosmin.evaluation.protocols.gallery import (
    BLOCK,
    Ranked,
    gallery,
    kept_neighbours,
    planar_map,
    sheet,
    square,
    tile_side,
)
from prosmin.evaluation.protocols.pictures import choose, neighbours_of
from prosmin.models.vit import class_attention, has_class_attention
from prosmin.report.runs import Run
from prosmin.report.sections.attention import has_attention
from prosmin.report.sections.images import gallery as gallery_block
from prosmin.report.sections.images import order, read_album
from tiny_run import TINY


def clusters(*, groups=3, each=20, width=16, seed=0):
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(groups, width, generator=random)
    which = torch.arange(groups).repeat_interleave(each)
    return centres[which] + 0.05 * torch.randn(groups * each, width, generator=random), which


def vit(**options):
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", num_classes=0, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, **options
    )
    return model.eval()


class TestAttention:
    @pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"reg_tokens": 3}])
    def test_it_is_what_the_block_itself_computes(self, options):
        """Without the fused kernel timm passes its weights through a dropout, where they can be seen."""
        model, x = vit(**options), torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        seen = []
        last = model.blocks[-1].attn
        last.fused_attn = False
        last.attn_drop.register_forward_hook(lambda module, inputs, output: seen.append(output))
        weights = class_attention(model, x)
        model(x)
        expected = seen[0][:, :, 0, model.num_prefix_tokens :].reshape(3, 4, 4, 4)
        torch.testing.assert_close(weights, expected)
        assert float(weights.sum((2, 3)).max()) < 1  # the class token keeps some for itself

    def test_rows_and_columns_are_those_of_the_picture(self):
        """A network that looks for bright patches looks where the patch is bright."""
        model = vit()
        nn.init.zeros_(model.pos_embed)
        plain, bright = torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 32, 32)
        bright[..., 8:16, 24:32] = 5.0  # the second row of patches, the last column
        change = (class_attention(model, bright) - class_attention(model, plain)).abs().mean((0, 1))
        assert divmod(int(change.argmax()), 4) == (1, 3)

    def test_who_has_it(self):
        assert has_class_attention(vit())
        assert not has_class_attention(vit(class_token=False, global_pool="avg"))
        assert not has_class_attention(timm.create_model("test_resnet", num_classes=0))


class TestThumbnails:
    def packed(self, *shapes):
        images, sizes = pack([torch.full((3, h, w), 200, dtype=torch.uint8) for h, w in shapes])
        names = tuple(map(str, range(len(shapes))))
        return Pictures(images=images, sizes=sizes, labels=None, classes=(), keys=names, spec="x")

    @pytest.mark.parametrize(("side", "tile"), [(7, 8), (28, 32), (32, 32), (63, 64), (500, 64)])
    def test_tiles_are_as_large_as_the_pictures_need(self, side, tile):
        assert tile_side(self.packed((side, side + 9))) == tile

    def test_the_centre_is_cut_out_and_padding_is_not_seen(self):
        several = self.packed((40, 20), (64, 64))
        several.images[0, :, :10] = 0  # outside the centred square, as all the padding is
        several.images[0, :, 30:] = 0
        assert square(several, 0, 20).shape == (20, 20, 3)
        assert (square(several, 0, 20) == 200).all()
        assert (square(several, 0, 32) == 200).all()

    def test_tiles_lie_in_rows_and_do_not_run_into_each_other(self):
        random = np.random.default_rng(0)
        colours = random.integers(0, 256, size=(7, 1, 1, 3))
        tiles = list(np.broadcast_to(colours, (7, 4 * BLOCK, 4 * BLOCK, 3)).astype(np.uint8))
        made = sheet(tiles)
        whole = np.asarray(Image.open(io.BytesIO(made.jpeg))).astype(int)
        assert (made.columns, whole.shape) == (3, (96, 96, 3))
        for i, tile in enumerate(tiles):
            row, column = divmod(i, 3)
            found = whole[32 * row : 32 * (row + 1), 32 * column : 32 * (column + 1)]
            # This JPEG moves a flat colour by a few levels; a neighbour's colour would move it by dozens.
            assert np.abs(found - tile).max() <= 8


class TestMap:
    def test_groups_stay_apart(self):
        features, which = clusters()
        points = planar_map(features, seed=0)
        assert points.shape == (60, 2)
        assert points.min() >= 0
        assert points.max() <= 1
        centres = np.stack([points[which == g].mean(0) for g in range(3)])
        nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(1)
        assert (nearest == which.numpy()).all()
        assert (planar_map(features, seed=0) == points).all()

    @pytest.mark.parametrize("features", [torch.ones(40, 8), torch.zeros(40, 8), torch.randn(3, 5), torch.ones(2, 1)])
    def test_what_cannot_be_arranged_still_has_places(self, features):
        points = planar_map(features, seed=0)
        assert points.shape == (len(features), 2)
        assert np.isfinite(points).all()

    def test_neighbours_are_counted_as_kept(self):
        angle = torch.linspace(0, 3, 50) ** 1.1
        circle = torch.stack([angle.cos(), angle.sin()], dim=1)
        assert kept_neighbours(circle, circle.numpy(), k=4) == 1.0
        shuffled = circle[torch.randperm(50, generator=torch.Generator().manual_seed(0))]
        # By chance each of 4 neighbours is among 4 of 49; the standard deviation of the mean of 200 is 0.02.
        assert kept_neighbours(circle, shuffled.numpy(), k=4) == pytest.approx(4 / 49, abs=0.08)


class TestNeighbours:
    def test_they_are_the_nearest_others(self):
        features, _ = clusters()
        cosines, places = neighbours_of(features, torch.tensor([0, 33]), 5)
        normal = features / features.norm(dim=1, keepdim=True)
        for row, own in enumerate((0, 33)):
            every = normal @ normal[own]
            every[own] = -2
            assert places[row].tolist() == every.argsort(descending=True)[:5].tolist()
            torch.testing.assert_close(cosines[row], every[places[row]])

    def test_pictures_all_alike_have_neighbours_too(self):
        cosines, places = neighbours_of(torch.ones(30, 4), torch.arange(30), 3)
        assert places.shape == (30, 3)
        assert not (places == torch.arange(30)[:, None]).any()
        torch.testing.assert_close(cosines, torch.ones(30, 3))

    def test_a_large_set_is_shown_in_part(self):
        features, which = clusters(groups=10, each=50)
        first = torch.tensor([3, 477])
        chosen = choose(features, first, k=4, most=60, seed=0)
        assert len(chosen) == len(set(chosen.tolist())) <= 60
        assert len(chosen) > 55
        assert chosen.tolist() == sorted(chosen.tolist())
        _, near = neighbours_of(features, chosen, 4)
        whole = [set(row) <= set(chosen.tolist()) for row in near.tolist()]
        assert whole[chosen.tolist().index(3)]
        assert whole[chosen.tolist().index(477)]
        assert sum(whole) >= 60 // 5  # every image that was not brought by another has its neighbours with it
        assert len(which[chosen].unique()) > 4  # chance chose among all
        assert torch.equal(chosen, choose(features, first, k=4, most=60, seed=0))
        assert not torch.equal(chosen, choose(features, first, k=4, most=60, seed=1))

    def test_a_small_set_is_shown_whole(self):
        features, _ = clusters()
        assert choose(features, torch.tensor([5]), k=4, most=60, seed=0).tolist() == list(range(60))


def some(spec, every=12):
    loaded = load_pictures(spec)
    return loaded.subset(torch.arange(0, len(loaded), every))


def context_of(recipe="demo", **changes):
    overrides = TINY if recipe == "demo" else {name: v for name, v in TINY.items() if not name.startswith("backbone")}
    sets = {name: some(f"photos@{name}") for name in ("train", "test")} | {"photos@ood": some("photos@ood")}
    return Context(untrained(configs.resolve(recipe=recipe, overrides=overrides)), sets | changes, ood=("photos@ood",))


def as_run(result):
    metrics = {"metrics": result.metrics, "settings": result.settings}
    return Run(path="r", name="r", results={"pictures": metrics}, arrays={"pictures": result.arrays})


class TestProtocol:
    @pytest.fixture(scope="class")
    @classmethod
    def measured(cls):
        context = context_of()
        return context, pictures.run(context)

    def test_every_picture_has_its_own_neighbours_and_names(self, measured):
        context, result = measured
        album, test = read_album(as_run(result)), context.sets["test"]
        assert album is not None
        assert (album.shown, album.evaluated) == (70 + 24, 70)
        assert album.key[:70] == list(test.keys)
        assert album.label[:70] == [test.classes[i] for i in test.labels]
        np.testing.assert_allclose(album.value[:70], context.uncertainty("test").numpy())
        features = torch.nn.functional.normalize(context.features("test"), dim=1).numpy()
        similar = features @ features.T - 3 * np.eye(70)
        assert (album.neighbours[:70, 0] == similar.argmax(1)).all()
        np.testing.assert_allclose(album.similarity[:70], -np.sort(-similar, axis=1)[:, :8], atol=1e-6)

    def test_strange_pictures_are_those_of_the_score(self, measured):
        context, result = measured
        album, pool = read_album(as_run(result)), context.sets["photos@ood"]
        scores = fit_knn_distance(context.features("train"))(context.features("photos@ood"))
        best = scores.argsort(descending=True)[:24]
        assert album.key[70:] == [pool.keys[i] for i in best]
        np.testing.assert_allclose(album.value[70:], scores[best].numpy(), rtol=1e-6)
        assert set(album.set[70:]) == {"photos@ood"}
        outside = torch.nn.functional.normalize(context.features("photos@ood")[best], dim=1)
        inside = torch.nn.functional.normalize(context.features("test"), dim=1)
        assert album.neighbours[70:, 0].tolist() == (outside @ inside.T).argmax(1).tolist()

    def test_the_galleries_pictures_are_among_them(self, measured):
        """The report opens an image of a gallery with its neighbours, which it finds here by name."""
        context, result = measured
        album = read_album(as_run(result))
        strange = Ranked(
            context.sets["photos@ood"], fit_knn_distance(context.features("train"))(context.features("photos@ood"))
        )
        shown = gallery(Ranked(context.sets["test"], context.uncertainty("test")), [strange])
        for key, kind in zip(shown["thumbnail_key"], shown["thumbnail_kind"], strict=True):
            assert album.find(str(key), strange=kind == "ood") is not None

    def test_strange_pictures_of_one_name_in_two_sets_are_not_taken_for_each_other(self, measured):
        context, _ = measured
        pool, names = context.sets["photos@ood"], ("folder:one", "folder:two")
        keys = tuple(f"{i}.png" for i in range(12))
        sets = {
            name: dataclasses.replace(pool.subset(torch.arange(12 * n, 12 * n + 12)), keys=keys, spec=name)
            for n, name in enumerate(names)
        }
        context = dataclasses.replace(context, sets=context.sets | sets, ood=names)
        distance = fit_knn_distance(context.features("train"))
        strange = [Ranked(sets[name], distance(context.features(name))) for name in names]
        shown = gallery(Ranked(context.sets["test"], context.uncertainty("test")), strange)
        run = Run(path="r", name="r", arrays={"uncertainty": shown, "pictures": pictures.run(context).arrays})
        album = read_album(run)
        opened = [int(p.place.removeprefix("0:")) for p in gallery_block(run, "ood", album).pictures]
        np.testing.assert_allclose(album.value[opened], shown["thumbnail_uncertainty"][order(shown, "ood")], rtol=1e-6)
        assert len(set(opened)) == 24
        del shown["thumbnail_set"]  # as earlier versions left it: rather none than the wrong one
        old = gallery_block(run, "ood", album).pictures
        assert [picture.place for picture in old] == [""] * 24
        assert all(p.place for p in gallery_block(run, "certain", album).pictures)

    def test_thumbnails_show_the_pictures(self, measured):
        context, result = measured
        album = read_album(as_run(result))
        whole = np.asarray(Image.open(io.BytesIO(album.jpeg))).astype(float)
        for i in (0, 13, 69):
            row, column = divmod(i, album.columns)
            found = whole[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
            gaps = [np.abs(found - context.sets["test"].images[j].permute(1, 2, 0).numpy()).mean() for j in range(70)]
            assert int(np.argmin(gaps)) == i

    def test_a_part_of_a_large_set_names_the_rest(self, measured, monkeypatch):
        context, _ = measured
        monkeypatch.setattr(pictures, "SHOWN", 30)
        monkeypatch.setattr(pictures, "PICTURES", 3)
        album = read_album(as_run(pictures.run(context)))
        test = context.sets["test"]
        assert len(album.key) > album.shown
        assert album.shown <= 33
        assert len(set(album.key)) == len(album.key)
        place = {key: i for i, key in enumerate(test.keys)}
        nearest = torch.nn.functional.normalize(context.features("test"), dim=1)
        nearest = (nearest @ nearest.T - 3 * torch.eye(70)).argmax(1)
        for i in range(album.shown - 3):  # the neighbour is the true one, with a thumbnail or without
            assert place[album.key[album.neighbours[i, 0]]] == int(nearest[place[album.key[i]]])
        order = context.uncertainty("test").argsort()
        assert {test.keys[i] for i in [*order[:3], *order[-3:]]} <= set(album.key[: album.shown])

    def test_pictures_without_labels(self):
        plain = dataclasses.replace(some("photos@test"), labels=None, classes=())
        album = read_album(as_run(pictures.run(context_of(test=plain))))
        assert set(album.label[:70]) == {""}
        assert album.classes == []

    def test_attention_is_kept_where_there_is_a_vit(self, measured):
        _, result = measured
        assert not has_attention(as_run(result), read_album(as_run(result)))
        context = context_of("demo-vit")
        result = pictures.run(context)
        run = as_run(result)
        assert has_attention(run, read_album(run))
        assert result.arrays["attention"].shape == (8, 2, 8, 8)
        values = result.arrays["value"][result.arrays["attention_of"]]
        assert (np.diff(values) >= 0).all()  # from the surest to the least sure
        assert values[0] == result.arrays["value"][:70].min()
        assert values[-1] == result.arrays["value"][:70].max()
        i = int(result.arrays["attention_of"][3])
        expected = context.sets["test"].images[i].permute(1, 2, 0).numpy()
        np.testing.assert_allclose(result.arrays["attention_view"][3], expected, atol=1)  # 32 px are seen whole
