"""scikit-learn's own checks.

Most of them feed a table of a few normally distributed columns, which no image classifier can take for images. So
they run twice: on the classifier itself, where those checks are listed with the reason, and on a subclass that
draws each row of a table as a small picture, where nearly all of them apply.
"""

from __future__ import annotations

from typing import Any
from unittest import SkipTest

import numpy as np
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_array

from circle import BiRC2DConfig, CircleClassifier
from circle.data.batches import ImageBatch

TINY = BiRC2DConfig(stem_channels=(4,), patch_sizes=(2,), width=4, grid=2, moments=("mean",))

NOT_SQUARE = "feeds tables of 2, 3, 5 or 10 columns: not a flattened square image"
NOT_IMAGES = "feeds numbers beyond [0, 1]: not an image"
TABULAR = {
    "check_classifier_data_not_an_array": NOT_IMAGES,
    "check_classifiers_classes": NOT_SQUARE,
    "check_classifiers_train": NOT_SQUARE,
    "check_dict_unchanged": NOT_IMAGES,
    "check_dont_overwrite_parameters": NOT_IMAGES,
    "check_dtype_object": NOT_SQUARE,
    "check_estimators_dtypes": NOT_SQUARE,
    "check_estimators_fit_returns_self": NOT_SQUARE,
    "check_estimators_overwrite_params": NOT_SQUARE,
    "check_estimators_partial_fit_n_features": NOT_SQUARE,
    "check_estimators_pickle": NOT_IMAGES,
    "check_f_contiguous_array_estimator": NOT_IMAGES,
    "check_fit2d_1feature": NOT_IMAGES,
    "check_fit2d_1sample": NOT_SQUARE,
    "check_fit2d_predict1d": NOT_IMAGES,
    "check_fit_check_is_fitted": NOT_SQUARE,
    "check_fit_idempotent": NOT_SQUARE,
    "check_methods_sample_order_invariance": NOT_IMAGES,
    "check_methods_subset_invariance": NOT_IMAGES,
    "check_n_features_in": NOT_SQUARE,
    "check_n_features_in_after_fitting": NOT_IMAGES,
    "check_pipeline_consistency": NOT_IMAGES,
    "check_readonly_memmap_input": NOT_SQUARE,
}


@parametrize_with_checks([CircleClassifier(TINY)], expected_failed_checks=lambda _: TABULAR)
def test_on_the_classifier(estimator: Any, check: Any) -> None:
    check(estimator)


class Drawn(CircleClassifier):
    """Draws every row of a table as a picture: columns become grey stripes, squashed into [0, 1]."""

    def _batch(self, X: Any) -> ImageBatch:
        table = check_array(X, dtype=np.float64, estimator=self, input_name="X")
        if self._started and table.shape[1] != self.columns_:
            expected = f"but {type(self).__name__} is expecting {self.columns_} features as input"
            raise ValueError(f"X has {table.shape[1]} features, {expected}")
        if not self._started:
            self.columns_ = table.shape[1]
        stripes = np.repeat(1 / (1 + np.exp(-table / 2)), 4, axis=1)
        return super()._batch(np.repeat(stripes[:, None, :], 4, axis=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = False
        return tags

    def _start(self, *arguments: Any, **options: Any) -> None:
        super()._start(*arguments, **options)
        self.n_features_in_ = self.columns_


@parametrize_with_checks([Drawn(TINY)], expected_failed_checks=lambda _: {})
def test_on_tables_drawn_as_pictures(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_list_of_reasons_is_not_longer_than_needed() -> None:
    """Every check that is listed really fails: a check that starts to pass must leave the list."""
    failed = set()
    for estimator, check in _checks():
        try:
            check(estimator)
        except SkipTest:
            continue
        except Exception:
            failed.add(check.func.__name__)
    assert set(TABULAR) == failed


def _checks() -> Any:
    from sklearn.utils.estimator_checks import estimator_checks_generator

    return estimator_checks_generator(CircleClassifier(TINY))
