"""A folder in; images.parquet, issues.csv and a page out."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from inspecting import about, encoded, listed, numbered, picture, rows, write_images
from prosmin.encoder import load
from prosmin.encoder.neighbours import nearest
from prosmin.encoder.space import Space, fit_space
from prosmin.errors import UsageError
from prosmin.inspect import inspect
from prosmin.inspect import map as maps
from prosmin.inspect.findings import Issue
from prosmin.inspect.issues import uncertain_issues, write_issues
from prosmin.inspect.outliers import Outliers, find_outliers


def kinds(out, kind):
    """The lines of one kind of issue, by name."""
    return {line["name"]: line for line in listed(out) if line["kind"] == kind}


@pytest.fixture(scope="module")
def finished(encoder, tmp_path_factory):
    """A folder of 40 images in two classes, one of them twice and one file broken: findings and folder of results."""
    place = tmp_path_factory.mktemp("run")
    folder = write_images(place / "images", [f"{'ab'[i % 2]}/{i:03d}.png" for i in range(40)])
    (folder / "b/copy.png").write_bytes((folder / "a/000.png").read_bytes())
    (folder / "a/broken.jpg").write_bytes(b"nonsense")
    return inspect(folder, place / "out", encoder=encoder, count=7), place / "out"


class TestFiles:
    def test_are_the_three_and_nothing_else(self, finished):
        assert sorted(path.name for path in finished[1].iterdir()) == ["images.parquet", "index.html", "issues.csv"]

    def test_one_row_for_each_readable_image(self, finished):
        findings, out = finished
        found = rows(out)
        assert list(found) == list(findings.keys)
        assert len(found) == 41
        assert {row["label_name"] for row in found.values()} == {"a", "b"}
        assert all((row["width"], row["height"]) == (24, 24) for row in found.values())

    def test_thumbnails_are_those_of_the_rows(self, finished):
        findings, out = finished
        for i, row in enumerate(rows(out).values()):
            assert row["image"]["bytes"] == findings.thumbnail(i)
            assert row["image"]["path"] == row["key"]
        shown = np.asarray(Image.open(io.BytesIO(findings.thumbnail(3)))).astype(float)
        original = np.asarray(picture(int(findings.keys[3][2:5]))).astype(float)
        assert np.abs(shown - original).mean() < 10  # as after JPEG

    def test_neighbours_are_row_numbers_nearest_first(self, finished, encoder):
        findings, out = finished
        table = pq.read_table(out / "images.parquet")
        features = load(encoder).background.space(torch.tensor(table.column("features").to_pylist()))
        _, expected = nearest(features, features, 24, exclude_self=True)
        ids = torch.tensor([row["ids"] for row in table.column("neighbors").to_pylist()])
        # Where two are equally near their order may differ.
        assert (ids == expected).float().mean() > 0.95
        distances = np.array([row["distances"] for row in table.column("neighbors").to_pylist()])
        assert (np.diff(distances, axis=1) >= 0).all()
        assert np.array_equal(ids.numpy(), findings.neighbours)

    def test_types_that_other_programs_need(self, finished, encoder):
        schema = pq.read_schema(finished[1] / "images.parquet")
        assert schema.field("features").type == pa.list_(pa.float32(), schema.field("features").type.list_size)
        assert schema.field("image").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        assert schema.field("x").type == schema.field("y").type == pa.float32()
        assert schema.field("issues").type == pa.list_(pa.string())
        assert b"huggingface" in schema.metadata
        written = about(finished[1])
        assert (written["run"], written["settings"]["encoder"]) == (str(encoder), load(encoder).card["hash"])
        assert set(written["columns"]) <= set(schema.names)

    def test_issues_are_the_same_in_both_files(self, finished):
        findings, out = finished
        by_name = {}
        for line in listed(out):
            by_name.setdefault(line["name"], []).append(line["kind"])
        assert by_name.pop("a/broken.jpg") == ["unreadable"]
        assert by_name == {key: row["issues"] for key, row in rows(out).items() if row["issues"]}
        assert len(listed(out)) == len(findings.issues)


class TestIssues:
    def test_copies_are_a_group_with_one_to_keep(self, finished):
        found = kinds(finished[1], "exact_duplicate")
        assert set(found) == {"a/000.png", "b/copy.png"}
        assert [line["action"] for line in found.values()] == ["keep", "remove, keep a/000.png"]
        assert len({line["group"] for line in found.values()}) == 1
        assert {key: row["group"] for key, row in rows(finished[1]).items() if row["group"] is not None} == {
            "a/000.png": 0,
            "b/copy.png": 0,
        }

    def test_the_file_is_kept_and_not_a_link_to_it(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", numbered(3))
        (folder / "000-link.png").symlink_to("002.png")
        inspect(folder, tmp_path / "out", encoder=encoder)
        actions = {name: line["action"] for name, line in kinds(tmp_path / "out", "exact_duplicate").items()}
        assert actions == {"002.png": "keep", "000-link.png": "remove, keep 002.png"}

    def test_the_reason_of_an_unreadable_file(self, finished):
        assert kinds(finished[1], "unreadable")["a/broken.jpg"]["note"]

    def test_at_most_the_stated_share_is_flagged(self, finished):
        findings, out = finished
        flagged = [key for key, row in rows(out).items() if row["flag"]]
        assert set(flagged) == set(kinds(out, "ood"))
        assert len(flagged) == 2  # 5 % of 41
        scores = findings.columns["ood_score"]
        assert sorted(scores)[-2:] == sorted(scores[[findings.keys.index(key) for key in flagged]])

    def test_uncertain_are_not_flagged_and_the_column_is_written(self, finished):
        findings, out = finished
        uncertain = kinds(out, "uncertain")
        assert len(uncertain) == 2  # 5 % of 41
        assert not set(uncertain) & set(kinds(out, "ood"))
        values = [row["uncertainty"] for row in rows(out).values()]
        assert values == pytest.approx(findings.columns["uncertainty"].tolist())

    def test_uncertain_are_those_whose_neighbours_disagree_most(self):
        numbers = np.arange(40, dtype=np.float32)
        flag = np.isin(numbers, (39, 20))
        found = Outliers(-numbers, flag, numbers.astype(np.int64), numbers, -numbers, numbers, 0.0, 0.05)
        issues = uncertain_issues(found, [f"{i}.png" for i in range(40)])
        assert [(issue.image, issue.score) for issue in issues] == [(38, 38), (37, 37)]

    def test_representative_images_are_ranked(self, finished):
        findings, out = finished
        ranks = {row["representative"]: key for key, row in rows(out).items() if row["representative"] is not None}
        assert [ranks[i] for i in range(7)] == [findings.keys[i] for i in findings.representative]


class TestLeaks:
    def test_between_splits(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", [f"train/{name}" for name in numbered(8)])
        write_images(folder, [f"test/{name}" for name in numbered(4)], seed=1)
        (folder / "test/leaked.png").write_bytes((folder / "train/002.png").read_bytes())
        (folder / "train/copy.png").write_bytes((folder / "train/003.png").read_bytes())
        inspect(folder, tmp_path / "out", encoder=encoder)
        assert set(kinds(tmp_path / "out", "leak")) == {"test/leaked.png", "train/002.png"}
        assert "train/002.png" in kinds(tmp_path / "out", "leak")["test/leaked.png"]["note"]
        assert set(kinds(tmp_path / "out", "exact_duplicate")) == {"train/003.png", "train/copy.png"}

    def test_from_the_reference(self, encoder, tmp_path):
        reference = write_images(tmp_path / "reference", numbered(30))
        folder = write_images(tmp_path / "images", numbered(5), seed=1)
        (folder / "leaked.png").write_bytes((reference / "007.png").read_bytes())
        findings = inspect(folder, tmp_path / "out", encoder=encoder, reference=reference)
        found = kinds(tmp_path / "out", "leak")
        assert set(found) == {"leaked.png"}
        assert "007.png" in found["leaked.png"]["note"]
        assert findings.reference == f"folder:{reference}"

    def test_the_same_file_is_not_its_own_copy(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", numbered(12))
        inspect(folder, tmp_path / "out", encoder=encoder, reference=folder)
        assert not kinds(tmp_path / "out", "leak")
        assert all(row["reference_distance"] > 0 for row in rows(tmp_path / "out").values())


class TestReference:
    def test_is_scanned_once(self, encoder, tmp_path, capsys):
        reference = write_images(tmp_path / "reference", numbered(30))
        folder = write_images(tmp_path / "images", numbered(5), seed=1)
        inspect(folder, tmp_path / "out", encoder=encoder, reference=reference)
        capsys.readouterr()
        inspect(folder, tmp_path / "out", encoder=encoder, reference=reference)
        assert "reference:" not in capsys.readouterr().out  # no progress: nothing to compute

    def test_new_images_of_it_move_no_rows(self, encoder, tmp_path):
        reference = write_images(tmp_path / "reference", numbered(30))
        folder = write_images(tmp_path / "images", numbered(5), seed=1)
        (folder / "leaked.png").write_bytes((reference / "007.png").read_bytes())
        inspect(folder, tmp_path / "out", encoder=encoder, reference=reference)
        write_images(reference, ["000-a.png", "000-b.png"], seed=2)  # before most others
        inspect(folder, tmp_path / "out", encoder=encoder, reference=reference)
        inspect(folder, tmp_path / "fresh", encoder=encoder, reference=reference)
        assert "007.png" in kinds(tmp_path / "out", "leak")["leaked.png"]["note"]
        continued, fresh = rows(tmp_path / "out"), rows(tmp_path / "fresh")
        assert {key: row["nearest"] for key, row in continued.items()} == {
            key: row["nearest"] for key, row in fresh.items()
        }

    def test_after_a_share_that_it_does_not_allow_the_folder_can_be_used(self, encoder, tmp_path):
        reference = write_images(tmp_path / "reference", numbered(12))
        folder = write_images(tmp_path / "images", numbered(5), seed=1)
        with pytest.raises(UsageError, match=r"0\.01"):
            inspect(folder, tmp_path / "out", encoder=encoder, reference=reference, false_alarms=0.01)
        inspect(folder, tmp_path / "out", encoder=encoder, reference=reference, false_alarms=0.1)
        assert len(rows(tmp_path / "out")) == 5

    def test_nearest_is_one_of_its_images(self, encoder, tmp_path):
        reference = write_images(tmp_path / "reference", [f"r{name}" for name in numbered(30)])
        folder = write_images(tmp_path / "images", numbered(5), seed=1)
        inspect(folder, tmp_path / "out", encoder=encoder, reference=reference)
        assert all(row["nearest"].startswith("r") for row in rows(tmp_path / "out").values())


PLAIN = Space(torch.zeros(3), torch.eye(3))
"""Distances as they are."""


class TestOutliers:
    def line(self, count):
        """Features along an arc, which are all alike, and one at a right angle to them."""
        angles = torch.linspace(0, 0.1, count)
        return torch.stack([angles.cos(), angles.sin(), torch.zeros(count)], 1)

    def test_an_outlier_with_many_copies_is_still_flagged(self):
        outlier = torch.tensor([[0.0, 0.0, 1.0]]).expand(10, -1)
        features = torch.cat([self.line(190), outlier])
        pixels = np.array([*range(190), *[1000] * 10])
        found = find_outliers(features, pixels, space=PLAIN, reference=None, rate=0.05)
        assert found.flag[190:].all()
        assert found.flag[:190].sum() == 8  # 5 % of 191 different images are 9, and the outlier is one of them

    def test_copies_with_other_pixels_are_recognised_by_their_features(self):
        angles = torch.linspace(0, 1, 190)
        alike = torch.stack([angles.cos(), angles.sin(), torch.zeros(190)], 1)
        features = torch.cat([alike, torch.tensor([[0.0, 0.0, 1.0]]).expand(10, -1)])
        found = find_outliers(features, np.arange(200), space=PLAIN, reference=None, rate=0.05)
        assert found.flag[190:].all()
        assert found.flag[:190].sum() == 8
        assert found.near[190:].tolist() == [0] * 10
        assert found.nearest[190:].tolist() == [191, *[190] * 9]
        np.testing.assert_allclose(found.uncertainty[190:], found.uncertainty[190], rtol=1e-4)

    def test_too_few_different_images(self):
        assert find_outliers(self.line(30), np.arange(30) % 9, space=PLAIN, reference=None, rate=None) is None

    @pytest.mark.parametrize(("rate", "flagged"), [(None, 1), (0.05, 0), (0.1, 1)])
    def test_of_few_images_one_is_flagged_unless_a_smaller_share_is_requested(self, rate, flagged):
        features = torch.cat([self.line(11), torch.tensor([[0.0, 0.0, 1.0]])])
        found = find_outliers(features, np.arange(12), space=PLAIN, reference=None, rate=rate)
        assert found.flag.tolist() == [False] * 11 + [flagged == 1]

    def test_the_share_that_is_flagged(self):
        features = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
        found = find_outliers(features, np.arange(200), space=fit_space(features), reference=None, rate=0.1)
        assert found.flag.sum() == 20
        assert (found.flag == (found.score > found.threshold)).all()


class TestMap:
    def test_of_many_images_keeps_clusters_apart(self, monkeypatch):
        monkeypatch.setattr(maps, "SAMPLE", 60)
        random = torch.Generator().manual_seed(0)
        centres = torch.eye(3, 8)
        features = centres.repeat_interleave(100, 0) + 0.05 * torch.randn(300, 8, generator=random)
        points = maps.points(features).reshape(3, 100, 2)
        middle = points.mean(1)
        spread = np.linalg.norm(points - middle[:, None], axis=2).max()
        between = min(np.linalg.norm(middle[i] - middle[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
        assert spread < between / 2
        assert points.min() >= 0
        assert points.max() <= 1

    def test_of_one_image(self):
        assert maps.points(torch.ones(1, 4)).shape == (1, 2)
        assert maps.neighbours(torch.ones(1, 4))[0].shape == (1, 0)


class TestCsv:
    def test_names_are_quoted_and_no_formulas(self, tmp_path):
        names = ["=cmd|x.png", "-rf.png", "+1.png", "@a.png", 'a,"b"\n.png', "\udcff.png", "<script>.png"]
        write_issues(tmp_path / "issues.csv", [Issue(0, name, "dark", 0.5, note="n") for name in names])
        assert [line["name"] for line in listed(tmp_path)] == [
            "./=cmd|x.png", "./-rf.png", "./+1.png", "./@a.png", 'a,"b"\n.png', "\ufffd.png", "<script>.png",
        ]  # fmt: skip


def test_a_second_run_keeps_what_has_not_changed(encoder, tmp_path):
    folder, out = write_images(tmp_path / "images", numbered(12)), tmp_path / "out"
    inspect(folder, out, encoder=encoder)
    before = rows(out)
    (folder / "005.png").unlink()
    (folder / "006.png").write_bytes(encoded(picture(500)))
    os.utime(folder / "006.png", ns=(5, 5))
    findings = inspect(folder, out, encoder=encoder)
    after = rows(out)
    assert set(before) - set(after) == {"005.png"}
    assert before["006.png"]["content"] != after["006.png"]["content"]
    assert all(before[key]["features"] == after[key]["features"] for key in after if key != "006.png")
    assert len(findings) == 11
