"""The reference of `prosmin embed`: scores, the threshold, the rate of flags, and which images are the same."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from coloured import coloured
from embedding import about, column, encoded, write_folder, write_parquet
from prosmin.data.sources import open_source
from prosmin.data.unreadable import CheckedSource
from prosmin.embed import Request, embed, reference, run
from prosmin.embed.reference import own_groups
from prosmin.encoder import load, neighbours
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.encoder.neighbourhood import AMONG_THEMSELVES, Neighbourhood
from prosmin.encoder.neighbours import nearest
from prosmin.encoder.space import Space, fit_space
from prosmin.errors import ProsminError, UsageError

PLAIN = Space(torch.zeros(2), torch.eye(2))
"""The space in which features are compared as they are."""


class TestThreshold:
    def test_the_threshold_is_the_right_one_of_the_scores(self):
        images = Neighbourhood(features=torch.eye(2), space=PLAIN, groups=torch.arange(2))
        scores = torch.arange(1.0, 20.0)  # n = 19: each of 20 scores is the largest with a probability of 1 / 20
        copies = reference.Copies(torch.tensor([0, 1, -1]), torch.full((3,), -1))
        found = reference.Reference(images=images, scores=scores, numbers=torch.arange(2), copies=copies)
        for asked, threshold, reached in ((0.05, 19, 0.05), (0.06, 19, 0.05), (0.1, 18, 0.1), (0.5, 10, 0.5)):
            assert found.threshold(asked) == threshold
            assert found.reached(asked) == pytest.approx(reached)

    def test_a_rate_too_small_for_the_reference(self):
        assert reference.possible_rate(19, 0.05) == reference.possible_rate(19, None) == 0.05
        assert reference.possible_rate(12, None) == pytest.approx(1 / 13)
        assert reference.possible_rate(12, 0.077) == 0.077
        with pytest.raises(UsageError, match=r"0\.05.*12 images.*0\.07693 or more.*19 images or more"):
            reference.possible_rate(12, 0.05)
        assert reference.possible_rate(12, 0.07693) == 0.07693  # what the message suggests is allowed

    def test_a_reference_image_is_compared_with_the_others(self):
        """Four points on a circle, by hand: the nearest other one, and the nearest one of another group."""
        angle = torch.tensor([0.0, 0.1, 1.0, 1.3])
        points = torch.stack([angle.cos(), angle.sin()], dim=1)
        chord = {gap: 2 * torch.tensor(gap / 2).sin() for gap in (0.1, 0.3, 0.9, 1.0)}
        alone = reference.fit(points, torch.arange(4), torch.arange(4), space=PLAIN)  # of 4 images 1 neighbour
        torch.testing.assert_close(alone.scores, torch.stack([chord[gap] for gap in (0.1, 0.1, 0.3, 0.3)]))
        paired = reference.fit(points, torch.tensor([10, 11, 14, 15]), torch.tensor([0, 0, 1, 2]), space=PLAIN)
        torch.testing.assert_close(paired.scores, torch.stack([chord[gap] for gap in (0.3, 0.3, 0.9, 1.0)]))
        found = paired.measure(points[:2], torch.tensor([0, -1]))  # the second is in no group: it finds itself
        assert found.nearest.tolist() == [14, 11]
        torch.testing.assert_close(found.near, torch.stack([chord[1.0], torch.tensor(0.0)]), rtol=1e-5, atol=1e-3)

    @pytest.mark.parametrize("count", [40, 500])
    def test_new_images_are_flagged_at_the_requested_rate(self, count):
        """At most at the rate of the threshold on average over draws, and not far below it.

        The mean of sixty draws has a standard error of 0.006 at 40 images and 0.003 at 500. A new image can choose its
        10 neighbours from one image more than a reference image can, which lowers the rate by 0.02 at 40 images.
        """
        rates, wrong = [], []
        space = fit_space(torch.randn(700, 8, generator=torch.Generator().manual_seed(60)))
        for seed in range(60):
            random = torch.Generator().manual_seed(seed)
            features, new = torch.randn(count, 8, generator=random), torch.randn(500, 8, generator=random)
            fitted = reference.fit(features, torch.arange(count), torch.arange(count), space=space)
            reached = fitted.reached(0.1)
            rates.append((fitted.measure(new).score > fitted.threshold(0.1)).double().mean())
            # Images that are their own neighbours give a threshold that is far too low.
            everything = fit_knn_distance(features, k=1)
            careless = everything(features).sort().values
            wrong.append((everything(new) > careless[int(0.9 * count)]).double().mean())
        found, error = torch.stack(rates).mean(), torch.stack(rates).std() / 60**0.5
        assert reached - 0.035 < found < reached + 2 * error
        assert torch.stack(wrong).mean() > 0.5

    def test_the_rate_in_the_file(self, encoder, specs, tmp_path):
        own, new = specs
        noisy = tmp_path / "noise.parquet"
        random = torch.Generator().manual_seed(5)
        noise = torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8, generator=random)
        pq.write_table(pa.table({"image": [encoded(image) for image in noise]}), noisy)
        rates = {}
        for name, data in (("new", new), ("noise", f"parquet:{noisy}")):
            request = Request(
                data=data, out=tmp_path / f"{name}-rows.parquet", reference=own, views=0, false_alarms=0.1
            )
            flags = pq.read_table(embed(encoder, request)).column("flag").to_pylist()
            rates[name] = sum(flags) / len(flags)
        # 0.0998 expected at most; 400 scores and 300 images leave a standard deviation of about 0.023.
        assert 0.02 < rates["new"] < 0.17
        assert rates["noise"] > 0.9

    def test_too_few_images(self, encoder, specs, tmp_path):
        few = write_parquet(tmp_path / "few.parquet", 9, seed=3)
        with pytest.raises(ProsminError, match=r"9 different readable images; allowed: 10 or more.*--reference none"):
            embed(encoder, Request(data=specs[1], out=tmp_path / "x.parquet", reference=few))
        with pytest.raises(UsageError, match=r"0\.001.*400 images.*0\.0025"):
            embed(encoder, Request(data=specs[1], out=tmp_path / "x.parquet", reference=specs[0], false_alarms=0.001))
        assert [path.name for path in tmp_path.iterdir()] == ["few.parquet"]
        folder = write_folder(tmp_path / "copies", 9)
        for i in range(5):
            shutil.copy(tmp_path / "copies/008.png", tmp_path / f"copies/{100 + i}.png")
        with pytest.raises(ProsminError, match=r"9 different readable images; allowed: 10 or more"):
            embed(encoder, Request(data=specs[1], out=tmp_path / "x.parquet", reference=folder))

    def test_the_default_rate_of_a_small_reference(self, encoder, specs, tmp_path, capsys):
        few = write_parquet(tmp_path / "few.parquet", 12, seed=3)
        out = embed(encoder, Request(data=few, out=tmp_path / "x.parquet", reference=few, views=0))
        assert about(out)["false_alarms"] == pytest.approx(1 / 13)
        printed = capsys.readouterr()
        assert all(words in printed.err for words in ("warning", "7.69 %", "12 images", "5 % needs 19"))
        assert "at most 7.69 %" in printed.out

    def test_the_printed_rate_is_that_of_the_threshold(self, encoder, tmp_path, capsys):
        few = write_parquet(tmp_path / "few.parquet", 16, seed=3)
        for requested, percent in ((0.06, "5.88 %"), (0.1, "5.88 %"), (0.12, "11.8 %")):
            out = tmp_path / f"{requested}.parquet"
            embed(encoder, Request(data=few, out=out, reference=few, views=0, false_alarms=requested))
            printed = capsys.readouterr()
            assert f"at most {percent}" in printed.out
            assert "warning" not in printed.err

    def test_an_image_is_not_its_own_neighbour(self, encoder, specs, tmp_path, capsys):
        request = Request(data=specs[0], out=tmp_path / "x.parquet", reference=specs[0], views=0, false_alarms=0.1)
        table = pq.read_table(embed(encoder, request))
        assert "They are images of the reference" in capsys.readouterr().out
        assert about(request.out)["reference"]["k"] == AMONG_THEMSELVES
        loaded = load(encoder)
        features = loaded.background.space(loaded.features(coloured(400, seed=1)))
        similarities, rows = nearest(features, features, AMONG_THEMSELVES, exclude_self=True)
        expected = (2 - 2 * similarities).clamp_min(0).sqrt()
        # A distance is the root of 2 - 2 cosine: near 0 it keeps half of the digits.
        torch.testing.assert_close(column(table, "reference_distance"), expected[:, 0], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(column(table, "ood_score"), expected.mean(1), rtol=1e-4, atol=1e-3)
        assert table.column("nearest").to_pylist() == [table.column("key")[int(row)].as_py() for row in rows[:, 0]]
        # 40 of 401 ranks; roundings may move one image over the threshold, which is the score of one.
        assert sum(table.column("flag").to_pylist()) in (39, 40, 41)

    def test_a_file_is_the_same_under_every_path_of_its_folder(self, tmp_path, monkeypatch):
        for name in ("a/x.png", "a/y.png", "b/x.png"):
            (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "set" / name).write_bytes(b"")
        (tmp_path / "link").symlink_to(tmp_path / "set")
        monkeypatch.chdir(tmp_path)

        def own(data, given):
            source, belonging = CheckedSource(open_source(data)), CheckedSource(open_source(given))
            groups, found = own_groups(source, belonging, torch.arange(len(belonging)))
            assert groups.tolist() == list(range(len(belonging)))
            return found.tolist()

        assert own("folder:set", f"folder:{tmp_path}/link") == [0, 1, 2]
        assert own("folder:set/b", "folder:set") == [2]
        assert own("folder:set", "folder:set/b") == [-1, -1, 0]
        assert own("folder:set/b", "folder:set/a") == [-1]  # x.png is another x.png

    def test_overlapping_patches_of_a_photograph_are_one_image(self):
        train, test = (CheckedSource(open_source(spec)) for spec in ("photos@train", "photos@test"))
        groups, own = own_groups(CheckedSource(open_source("photos")), train, torch.arange(len(train)))
        assert torch.equal(groups, own)
        assert len(groups.unique()) < len(groups)
        assert bool((own_groups(test, train, torch.arange(len(train)))[1] == -1).all())

    def test_scores_are_those_of_the_encoder(self, encoder, specs, tmp_path, monkeypatch):
        own, new = specs
        monkeypatch.setattr(neighbours, "_SIMILARITIES", 1000)  # two images at a time
        request = Request(data=new, out=tmp_path / "x.parquet", reference=own, views=0)
        table = pq.read_table(embed(encoder, request))
        loaded = load(encoder)
        judge = Neighbourhood(features=loaded.features(coloured(400, seed=1)), space=loaded.background.space)
        assert about(request.out)["reference"]["k"] == judge.k
        assert about(request.out)["settings"]["score"] == reference.SCORE
        # A distance is the root of 2 - 2 cosine: near 0 it keeps half of the digits.
        expected = judge.nearest(loaded.features(coloured(300, seed=2)))
        torch.testing.assert_close(column(table, "ood_score"), expected.score, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(column(table, "reference_distance"), expected.distance, rtol=1e-4, atol=1e-3)
        scores = loaded.fit_reference(coloured(400, seed=1)).ood_score(coloured(300, seed=2))
        torch.testing.assert_close(column(table, "ood_score"), scores, rtol=1e-4, atol=1e-3)

    def test_images_that_are_their_own_reference_are_opened_once(self, encoder, specs, tmp_path, monkeypatch):
        opened = []
        monkeypatch.setattr(run, "open_source", lambda spec: opened.append(spec) or open_source(spec))
        for name, given in (("same", specs[0]), ("other", specs[1])):
            embed(encoder, Request(data=specs[0], out=tmp_path / f"{name}.parquet", reference=given, views=0))
        assert opened == [specs[0], specs[0], specs[1]]

    def test_a_large_reference_is_sampled(self, monkeypatch):
        monkeypatch.setattr(reference, "MOST", 100)
        chosen = reference.choose(range(1000))
        assert len(chosen) == len(chosen.unique()) == 100
        assert bool((chosen.diff() > 0).all())
        assert 300 < chosen.float().mean() < 700


class TestCopies:
    """Copies in the reference: an image that does not belong is not hidden by copies of itself."""

    def fitted(self, features, groups=None):
        rows = torch.arange(len(features))
        return reference.fit(
            features,
            7 + rows,
            rows if groups is None else groups,
            space=fit_space(self.random(60, 1)),
            first=neighbours.first_of_copies(features),
        )

    def random(self, count, seed):
        return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))

    def test_they_change_nothing_for_new_images(self):
        features, new = self.random(60, 1), self.random(20, 2)
        once, twice = self.fitted(features), self.fitted(features.repeat(2, 1))
        torch.testing.assert_close(twice.scores, once.scores)
        for found, expected in zip(twice.measure(new), once.measure(new), strict=True):
            torch.testing.assert_close(found, expected)

    def test_all_are_scored_as_one_and_name_each_other(self):
        features = self.random(60, 1)
        bank = torch.cat([features, features[5:6], features[5:6]])
        found = self.fitted(bank).measure(bank, torch.arange(62))
        expected = self.fitted(features).measure(features, torch.arange(60))
        for name in ("score", "uncertainty"):
            rows = torch.cat([getattr(expected, name), getattr(expected, name)[[5, 5]]])
            torch.testing.assert_close(getattr(found, name), rows, rtol=1e-3, atol=1e-3)
        assert found.nearest[[5, 60, 61]].tolist() == [7 + 60, 7 + 5, 7 + 5]
        assert found.near[[5, 60, 61]].tolist() == [0, 0, 0]
        others = torch.tensor([i for i in range(60) if i != 5])
        assert torch.equal(found.nearest[others], expected.nearest[others])

    def test_of_an_image_outside_the_reference_are_found(self):
        features = self.random(60, 1)
        fitted = self.fitted(torch.cat([features, features[5:6]]))
        found = fitted.measure(features[5:7], torch.tensor([-1, 900]))  # in no group, or in one without images here
        assert found.nearest.tolist() == [7 + 5, 7 + 6]
        assert found.near.max() < 1e-3
        torch.testing.assert_close(found, fitted.measure(features[5:7]))

    def test_overlapping_images_are_no_copies_because_two_of_them_have_some(self):
        features = self.random(60, 1)
        bank, groups = torch.cat([features, features[:1]]), torch.tensor([*range(60), 30])
        found = self.fitted(bank, groups).measure(features[[30]], torch.tensor([30]))
        assert found.near > 0.1
        assert found.nearest != 7

    def test_a_strange_image_that_is_there_twice_is_flagged_twice(self, encoder, tmp_path):
        folder = write_folder(tmp_path / "images", 40)
        noise = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
        for name in ("a strange one", "b its copy", "c again"):
            (tmp_path / "images" / f"{name}.png").write_bytes(encoded(noise))
        table = pq.read_table(embed(encoder, Request(data=folder, out=tmp_path / "x.parquet", reference=folder)))
        assert table.column("flag").to_pylist()[40:] == [True, True, True]
        names = table.column("key").to_pylist()
        assert table.column("nearest").to_pylist()[40:] == [names[41], names[40], names[40]]
        assert table.column("reference_distance").to_pylist()[40:] == [0, 0, 0]
        for name in ("ood_score", "uncertainty"):
            found = column(table, name)
            torch.testing.assert_close(found[40:], found[40].expand(3), rtol=1e-4, atol=1e-4)
            assert found[40] >= found.max() - 1e-4


def test_a_file_is_the_same_however_its_path_is_written(tmp_path, monkeypatch):
    spec = write_parquet(tmp_path / "own.parquet", 12, seed=1)
    monkeypatch.chdir(tmp_path)
    own, same = (CheckedSource(open_source(name)) for name in (spec, "parquet:own.parquet"))
    groups, found = own_groups(same, own, torch.arange(12))
    assert torch.equal(groups, found)


def test_it_is_read_as_it_was_written(tmp_path):
    features = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    groups = torch.arange(30).flip(0)
    first = torch.tensor([*range(29), 3])  # as if the last image were a copy
    written = reference.fit(
        features, 7 + torch.arange(30), groups, space=fit_space(features), neighbours=4, first=first
    )  # fmt: skip
    reference.write_reference(written, tmp_path / "reference.safetensors")
    found = reference.read_reference(tmp_path / "reference.safetensors")
    assert found.images.k == 4
    for one, other in zip(found.measure(features, groups), written.measure(features, groups), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(found.scores, written.scores)


def test_a_damaged_reference_is_named(tmp_path):
    path = tmp_path / "reference.safetensors"
    path.write_bytes(b"cut")
    with pytest.raises(ProsminError, match=r"reference\.safetensors is damaged: .*Remove"):
        reference.read_reference(path)
