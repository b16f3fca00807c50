"""The transformer of scikit-learn: its conventions, and the numbers of the encoder."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coloured import coloured
from prosmin.data.image_sets import load_pictures
from prosmin.encoder import load, untrained
from prosmin.errors import ProsminError
from prosmin.sklearn import ImageEncoder
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small encoder; its features have 64 numbers."""
    return untrained(tiny_method("prosmin")).save(tmp_path_factory.mktemp("sklearn") / "encoder")


@pytest.fixture(scope="module")
def arrays():
    """(30, 32, 32, 3) in three colours, and their labels."""
    pictures = coloured(30, side=32)
    return pictures.images.permute(0, 2, 3, 1).numpy(), pictures.labels.numpy()


def test_features_are_those_of_the_encoder(folder, arrays):
    found = ImageEncoder(folder, device="cpu").fit(arrays[0]).transform(arrays[0])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, load(folder, device="cpu").features(arrays[0]).numpy())


@pytest.mark.parametrize("output", ["uncertainty", "ood_score"])
def test_scores_compare_with_the_images_of_fit(output, folder, arrays):
    transformer = ImageEncoder(folder, output=output).fit(arrays[0][:20])
    encoder = load(folder).fit_reference(arrays[0][:20])
    found = transformer.transform(arrays[0][20:])
    np.testing.assert_array_equal(found, getattr(encoder, output)(arrays[0][20:])[:, None].numpy())
    assert transformer.get_feature_names_out().tolist() == ["imageencoder0"]


def test_lists_and_arrays_of_paths_and_images(folder, arrays, tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, array in zip(paths, arrays[0], strict=False):
        Image.fromarray(array).save(path)
    transformer = ImageEncoder(folder).fit(arrays[0])
    wanted = transformer.transform(arrays[0][:3])
    mixed = np.empty(3, dtype=object)  # as scikit-learn indexes a list of images of different sizes
    mixed[:] = [Image.open(path) for path in paths]
    for given in (paths, [str(path) for path in paths], np.array([str(path) for path in paths]), list(mixed), mixed):
        np.testing.assert_allclose(transformer.transform(given), wanted, rtol=1e-6)


def test_parameters_and_clone(folder):
    transformer = ImageEncoder(folder, output="ood_score", batch_size=7)
    given = {"encoder": folder, "output": "ood_score", "device": None, "batch_size": 7}
    assert transformer.get_params() == given
    assert clone(transformer).get_params() == given
    assert transformer.set_params(output="features").output == "features"
    assert transformer.fit(None).encoder_.batch_size == 7
    assert not hasattr(clone(transformer), "encoder_")


def test_it_can_be_pickled_fitted(folder, arrays):
    for output in ("features", "ood_score"):
        transformer = ImageEncoder(folder, output=output).fit(arrays[0])
        again = pickle.loads(pickle.dumps(transformer))
        np.testing.assert_array_equal(again.transform(arrays[0][:4]), transformer.transform(arrays[0][:4]))


def test_names_of_the_columns(folder, arrays):
    transformer = ImageEncoder(folder).fit(arrays[0])
    names = transformer.get_feature_names_out()
    assert len(names) == transformer.transform(arrays[0][:1]).shape[1] == 64
    assert names[-1] == "imageencoder63"


def test_a_grid_search_chooses_its_parameters(folder, arrays):
    pipeline = make_pipeline(ImageEncoder(folder), StandardScaler(), LogisticRegression())
    grid = {"imageencoder__output": ["ood_score", "features"], "logisticregression__C": [0.1]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(arrays[0], arrays[1])
    assert search.best_params_["imageencoder__output"] == "features"  # one score cannot tell three colours apart
    assert search.best_score_ > 0.9


def test_the_shipped_encoder_in_a_pipeline_classifies_photographs():
    train, test = load_pictures("photos"), load_pictures("photos@test")
    some, others = torch.arange(0, len(train), 12), torch.arange(0, len(test), 6)  # 20 and 10 of each of 14
    model = make_pipeline(ImageEncoder(), StandardScaler(), LogisticRegression(C=0.01, max_iter=500))
    model.fit(train.images[some].permute(0, 2, 3, 1).numpy(), train.labels[some].numpy())
    score = model.score(test.images[others].permute(0, 2, 3, 1).numpy(), test.labels[others].numpy())
    assert score > 0.4  # chance is 1/14


def test_errors(folder, arrays):
    with pytest.raises(NotFittedError):
        ImageEncoder(folder).transform(arrays[0])
    with pytest.raises(ProsminError, match=r"'probability'.*features, uncertainty, ood_score"):
        ImageEncoder(folder, output="probability").fit(arrays[0])
    with pytest.raises(ProsminError, match="batch size is 0"):
        ImageEncoder(folder, batch_size=0).fit(arrays[0])
    with pytest.raises(ProsminError, match="no-such-run"):
        ImageEncoder("no-such-run").fit(arrays[0])
