"""The images that belong: distances to them, their dispersion, the uncertainty, and small or odd sets of them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prosmin.encoder import neighbourhood as neighbourhoods
from prosmin.encoder.detectors import fit_knn_distance
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.encoder.space import Space, fit_space
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.ranking import ood_metrics

PLAIN, PLAIN_4 = (Space(torch.zeros(dim), torch.eye(dim)) for dim in (3, 4))
"""The space in which features are compared as they are."""


def gaussian(count: int, dim: int, *, seed: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def on_circle(*angles: float) -> Tensor:
    """Points of the unit circle in the first two of three directions."""
    angle = torch.tensor(angles)
    return torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=1)


def around(centre: list[float], count: int, *, seed: int) -> Tensor:
    """A narrow cluster in three directions."""
    return torch.tensor(centre) + 0.1 * gaussian(count, 3, seed=seed)


@pytest.fixture(scope="module")
def clusters() -> Neighbourhood:
    """Two kinds of images, along two axes."""
    features = torch.cat([around([5, 0, 0], 60, seed=0), around([0, 5, 0], 60, seed=1)])
    return Neighbourhood(features=features, space=PLAIN)


class TestScore:
    def test_it_is_the_mean_distance_to_the_nearest(self):
        known = Neighbourhood(features=on_circle(0, 0.3, 0.7, 1.5, 2, 3), space=PLAIN, neighbours=2)
        found = known.nearest(3 * on_circle(0.1, 1.6))
        chord = 2 * torch.sin(torch.tensor([[0.1, 0.2], [0.1, 0.4]]) / 2)
        assert found.row.tolist() == [0, 3]
        torch.testing.assert_close(found.distance, chord[:, 0], rtol=1e-3, atol=0)  # a root of 2 - 2 cosine
        torch.testing.assert_close(found.score, chord.mean(1), rtol=1e-3, atol=0)
        assert torch.equal(known(3 * on_circle(0.1, 1.6)), found.score)

    @pytest.mark.parametrize(("count", "k"), [(2, 1), (5, 1), (10, 3), (29, 9), (30, 10), (1000, 10)])
    def test_a_small_set_has_fewer_neighbours(self, count, k):
        features = gaussian(count, 3, seed=0)
        assert Neighbourhood(features=features, space=PLAIN).k == k
        assert Neighbourhood(features=features, space=PLAIN, neighbours=50).k == (
            50 if count == 1000 else count // 3 or 1
        )

    def test_its_own_group_is_left_out(self):
        points = on_circle(0, 0.1, 1, 1.3)
        known = Neighbourhood(features=points, space=PLAIN, groups=torch.tensor([7, 7, 8, 9]))
        assert known.nearest(points, torch.tensor([7, 7, 8, -1])).row.tolist() == [2, 2, 3, 3]
        torch.testing.assert_close(known(points), torch.zeros(4), rtol=0, atol=1e-3)  # without groups each finds itself

    def test_a_duplicate_in_another_group_is_a_neighbour(self):
        """Ten copies of each image: all neighbours of an image are its copies."""
        images = gaussian(12, 3, seed=2).repeat(11, 1)
        known = Neighbourhood(features=images, space=PLAIN, groups=torch.arange(132))
        torch.testing.assert_close(known(images, torch.arange(132)), torch.zeros(132), rtol=0, atol=1e-3)
        torch.testing.assert_close(known.dispersion(images, torch.arange(132)), torch.zeros(132), rtol=0, atol=1e-5)
        assert known.uncertainty(gaussian(20, 3, seed=3)).isfinite().all()
        assert known.uncertainty(-images[:1]) > known.uncertainty(images[:1], torch.tensor([0]))

    def test_outliers_are_detected_better_than_by_the_plain_cosine(self):
        """A large common part, four directions that vary a lot in all images, and a shift in the other directions.

        400 images on each side: an AUROC has a standard error of 0.02 at most.
        """
        spread = torch.tensor([8.0] * 4 + [0.3] * 28)
        mean, shift = torch.full((32,), 20.0), torch.tensor([0.0] * 4 + [0.6, -0.6] * 14)
        reference, same, background = (gaussian(n, 32, seed=n) * spread + mean for n in (300, 400, 700))
        outliers = gaussian(401, 32, seed=4) * spread + mean + shift
        detectors = (Neighbourhood(features=reference, space=fit_space(background)), fit_knn_distance(reference))
        half_whitened, plain = (ood_metrics(found(same), found(outliers))["auroc"] for found in detectors)
        assert half_whitened > 0.9
        assert plain < 0.7


class TestRecognise:
    def test_the_same_image_apart_from_rounding_and_no_similar_one(self):
        """Images 0.1 apart, and changes of a tenth and a third of that."""
        angles = torch.linspace(0, 0.9, 10)
        known = Neighbourhood(features=on_circle(*angles.tolist()), space=PLAIN, groups=7 + torch.arange(10))
        for change, groups in ((0.0, range(7, 17)), (0.01, range(7, 17)), (0.033, [-1] * 10)):
            assert known.recognise(5 * on_circle(*(angles + change).tolist())).tolist() == list(groups)


class TestDispersion:
    def test_against_a_slow_loop(self):
        features, groups = gaussian(40, 6, seed=5) + 3, torch.arange(40) // 2
        queries, own = gaussian(7, 6, seed=6) + 3, torch.tensor([0, 5, -1, -1, 3, 19, -1])
        known = Neighbourhood(features=features, space=fit_space(gaussian(50, 6, seed=7)), groups=groups)
        space = fit_space(features)
        bank, at = space(features).double(), space(queries).double()
        expected = []
        for i in range(7):
            others = [j for j in range(40) if groups[j] != own[i]]
            near = sorted(others, key=lambda j, i=i: float((at[i] - bank[j]).norm()))[:10]
            pairs = [float(bank[a] @ bank[b]) for a in near for b in near if a != b]
            expected.append(1 - sum(pairs) / len(pairs))
        torch.testing.assert_close(known.dispersion(queries, own).tolist(), expected, rtol=0, atol=1e-5)

    def test_the_number_of_rows_at_once_changes_nothing(self, clusters, monkeypatch):
        queries = gaussian(50, 3, seed=8)
        expected = clusters.dispersion(queries), clusters.disagreement(queries)
        monkeypatch.setattr(neighbourhoods, "_VALUES", 100)  # 10 neighbours in 3 directions: 3 rows
        again = replace(clusters)  # without what the first call computed
        torch.testing.assert_close(
            (again.dispersion(queries), again.disagreement(queries)), expected, rtol=0, atol=1e-6
        )

    def test_it_is_0_among_images_that_are_alike_and_1_among_unrelated_ones(self):
        alike = Neighbourhood(features=torch.tensor([[1.0, 0, 0], [-1, 0, 0]]).repeat(20, 1), space=PLAIN)
        torch.testing.assert_close(alike.dispersion(torch.tensor([[2.0, 0, 0]])), torch.zeros(1), rtol=0, atol=1e-5)
        unrelated = Neighbourhood(features=torch.cat([torch.eye(30), -torch.eye(30)]), space=PLAIN)
        found = unrelated.dispersion(torch.ones(1, 30) + 0.01 * gaussian(1, 30, seed=9))
        torch.testing.assert_close(found, torch.ones(1), rtol=0, atol=1e-5)


class TestDisagreement:
    def test_against_a_slow_loop(self):
        features, groups = gaussian(66, 6, seed=5) + 3, torch.arange(66) // 2
        queries, own = gaussian(7, 6, seed=6) + 3, torch.tensor([0, 5, -1, -1, 3, 32, -1])
        known = Neighbourhood(features=features, space=fit_space(gaussian(50, 6, seed=7)), groups=groups)
        space = fit_space(features)
        bank, at = space(features).double(), space(queries).double()

        def near(x: Tensor, group: int, k: int) -> list[int]:
            others = [j for j in range(66) if groups[j] != group]
            return sorted(others, key=lambda j: float((x - bank[j]).norm()))[:k]

        around = [near(bank[i], int(groups[i]), 10) for i in range(66)]
        places = list(bank)
        for _ in range(2):
            means = [torch.stack([places[j] for j in around[i]]).mean(0) for i in range(66)]
            places = [mean / mean.norm() for mean in means]
        centre = torch.stack(places).mean(0)
        places = [(place - centre) / (place - centre).norm() for place in places]
        expected = []
        for x, group in zip(at, own, strict=True):
            parts = []
            for k in (5, 10, 20):
                rows = near(x, int(group), k)
                pairs = [float(places[i] @ places[j]) for i in rows for j in rows if i != j]
                parts.append(1 - sum(pairs) / len(pairs))
            expected.append(sum(parts) / 3)
        torch.testing.assert_close(known.disagreement(queries, own).tolist(), expected, rtol=0, atol=1e-4)

    def test_it_sees_what_noise_hides_from_the_dispersion(self):
        """Two kinds that overlap along one axis, and 20 directions that only tell images apart.

        What is uncertain is known: the closer to the middle, the less clear the kind. 800 queries: a rank correlation
        has a standard error of 0.04 at most.
        """
        axis = torch.cat([gaussian(600, 1, seed=20) * 0.7 + 1, gaussian(600, 1, seed=21) * 0.7 - 1])
        reference = torch.cat([axis, 0.5 * gaussian(1200, 20, seed=22)], dim=1)
        position = torch.linspace(-1.5, 1.5, 800)[:, None]
        queries = torch.cat([position, 0.5 * gaussian(800, 20, seed=23)], dim=1)
        known = Neighbourhood(features=reference, space=fit_space(reference))
        unclear = (-position[:, 0].abs()).argsort().argsort().float()
        smooth, plain = (
            torch.corrcoef(torch.stack([unclear, values.argsort().argsort().float()]))[0, 1]
            for values in (known.disagreement(queries), known.dispersion(queries))
        )
        assert smooth > 0.6
        assert smooth > plain + 0.1

    def test_some_images_of_a_large_set_are_enough(self, monkeypatch):
        features, queries = gaussian(1500, 3, seed=24), gaussian(50, 3, seed=25)
        monkeypatch.setattr(neighbourhoods, "MOST", 500)
        found = Neighbourhood(features=features, space=PLAIN, groups=torch.arange(1500))
        some = Neighbourhood(features=features[torch.linspace(0, 1499, 500, dtype=torch.float64).long()], space=PLAIN)
        assert torch.equal(found.disagreement(queries), some.disagreement(queries))

    def test_no_image_of_a_large_set_is_its_own_neighbour(self, monkeypatch):
        features, rows = gaussian(300, 3, seed=26), torch.arange(300)
        kept = torch.linspace(0, 299, 100, dtype=torch.float64).long()
        some = Neighbourhood(features=features[kept], space=PLAIN, groups=kept)
        monkeypatch.setattr(neighbourhoods, "MOST", 100)
        known = Neighbourhood(features=features, space=PLAIN, groups=rows)
        found, careless = known.disagreement(features, rows), known.disagreement(features)
        assert torch.equal(found, some.disagreement(features, rows))
        assert torch.equal((found != careless).nonzero()[:, 0], kept)


class TestUncertainty:
    def test_0_is_the_average_image(self):
        """In standard deviations of the images, each compared with the others; those far away come after all."""
        features, rows = gaussian(1000, 3, seed=27), torch.arange(1000)
        own = Neighbourhood(features=features, space=PLAIN, groups=rows)
        found, distance = own.uncertainty(features, rows), own(features, rows)
        unclear = own.disagreement(features, rows) + 1.1 * distance
        expected = (unclear - unclear.mean()) / unclear.std(correction=0)
        belongs = distance <= distance.sort().values[900]
        assert belongs.double().mean().item() == pytest.approx(0.9, abs=0.002)
        torch.testing.assert_close(found[belongs], expected[belongs], rtol=0, atol=1e-3)
        assert found[~belongs].min() > expected.max()
        assert torch.equal(found[~belongs].argsort(), distance[~belongs].argsort())
        without = Neighbourhood(features=features, space=PLAIN)
        queries = gaussian(20, 3, seed=28)
        torch.testing.assert_close(without.uncertainty(queries), own.uncertainty(queries))

    @pytest.mark.parametrize("count", [20, 40, 100])
    def test_new_images_that_are_far_come_after_all_that_are_near(self, count):
        known = Neighbourhood(features=gaussian(count, 3, seed=29), space=PLAIN)
        queries = gaussian(500, 3, seed=30)
        found, far = known.uncertainty(queries), known(queries) > known._usual.limit
        assert 0 < far.sum() < 500
        assert found[far].min() > found[~far].max()

    def test_with_few_images_the_distance_counts_more(self):
        """Of 10 images in many directions neighbours agree or not by chance; noise on the other side is far."""
        reference, same = gaussian(10, 40, seed=31) + 1, gaussian(400, 40, seed=32) + 1
        known = Neighbourhood(features=reference, space=Space(torch.zeros(40), torch.eye(40)))
        noise = gaussian(400, 40, seed=33)
        by_uncertainty, by_disagreement = (
            ood_metrics(found(same), found(noise))["auroc"] for found in (known.uncertainty, known.disagreement)
        )
        assert by_uncertainty > 0.9
        assert by_uncertainty > by_disagreement + 0.1

    def test_the_smoothing_does_not_depend_on_the_neighbours_of_the_score(self):
        features = gaussian(300, 4, seed=34)
        few, many = (Neighbourhood(features=features, space=PLAIN_4, neighbours=k) for k in (10, 50))
        assert torch.equal(few.disagreement(features), many.disagreement(features))

    def test_what_is_far_is_uncertain_even_if_its_neighbours_agree(self, clusters):
        far, near = torch.tensor([[2.0, -0.5, 0]]), torch.tensor([[5.0, 0, 0]])
        assert clusters.disagreement(far) < 0.1
        assert clusters.uncertainty(far) > clusters.uncertainty(near) + 1

    def test_it_is_high_far_from_all_images_and_between_two_kinds(self, clusters):
        typical = clusters.uncertainty(torch.cat([around([5, 0, 0], 50, seed=10), around([0, 5, 0], 50, seed=11)]))
        far, between = clusters.uncertainty(torch.tensor([[0.0, 0, 5], [3.5, 3.5, 0]]))
        assert min(far, between) > typical.max() + 1
        for values in (clusters.dispersion, clusters.disagreement):
            between, inside = values(torch.tensor([[3.5, 3.5, 0], [5.0, 0, 0]]))
            assert between > 0.5 > 0.1 > inside

    def test_a_sample_of_a_large_set_gives_the_moments(self, monkeypatch):
        features, queries = gaussian(3000, 4, seed=12), gaussian(20, 4, seed=13)
        of_all = Neighbourhood(features=features, space=fit_space(features))
        expected = of_all.uncertainty(queries)
        monkeypatch.setattr(neighbourhoods, "_ROWS", 1000)
        found = Neighbourhood(features=features, space=fit_space(features)).uncertainty(queries)
        assert not torch.equal(found, expected)
        # a standard deviation of 1,000 scores has a relative error of 0.02, for scores up to 5 of them; the limit of
        # what counts as far moves too, so that images next to it may change sides
        usual = of_all._usual
        clear = ((of_all(queries) - usual.limit) / usual.score_spread).abs() > 0.2
        assert clear.sum() > 10
        torch.testing.assert_close(found[clear], expected[clear], rtol=0.1, atol=0.2)


class TestOddSets:
    @pytest.mark.parametrize("count", [2, 3, 10])
    def test_few_images(self, count):
        features = gaussian(count, 3, seed=14)
        known = Neighbourhood(features=features, space=PLAIN, groups=torch.arange(count))
        for queries, groups in ((features, torch.arange(count)), (gaussian(5, 3, seed=15), None)):
            found = known.nearest(queries, groups)
            assert found.score.isfinite().all()
            assert known.uncertainty(queries, groups).isfinite().all()
        assert (known.nearest(features, torch.arange(count)).row != torch.arange(count)).all()

    def test_constant_features(self):
        known = Neighbourhood(features=torch.full((10, 3), 0.1), space=fit_space(gaussian(50, 3, seed=16)))
        for queries in (torch.full((2, 3), 0.1), gaussian(5, 3, seed=17)):
            assert known(queries).isfinite().all()
            assert known.dispersion(queries).isfinite().all()
            assert known.disagreement(queries).isfinite().all()
            assert known.uncertainty(queries).isfinite().all()
        same, other = known(torch.stack([torch.full((3,), 0.1), torch.tensor([-1.0, 2, 0])]))
        assert other > same + 0.5

    @pytest.mark.parametrize("features", [torch.ones(1, 3), torch.ones(3), torch.full((5, 3), torch.inf)])
    def test_features_that_cannot_be_compared_are_refused(self, features):
        with pytest.raises(ProsminError, match=r"allowed: \(M, D\) with 2|not finite"):
            Neighbourhood(features=features, space=PLAIN)

    def test_it_moves_with_its_groups(self, clusters, monkeypatch):
        known = Neighbourhood(features=clusters.features, space=PLAIN, groups=torch.arange(120))
        assert known.to("cpu") is known
        monkeypatch.setattr(neighbourhoods, "check_features", lambda *_, **__: None)  # meta has no values
        moved = known.to("meta")
        assert all(x.device.type == "meta" for x in (moved.features, moved.groups, *moved.space))
