"""From scores to probabilities: the softmax, and the one with a temperature of each image's own.

    p_c = softmax_c(score / (temperature tau))        tau = 1, or, where a head is calibrated,

    tau^2 = (k b + sum_c d_c) / (3 (k + C - 1))       d_c = max_j score_j - score_c

d_c, the margin of the best class over class c, is a log-likelihood ratio of Gaussians, whose standard deviation
over images of one class is the root of twice its mean. Features of images have heavier tails than Gaussians: within
one class some images lie several times further from their mean, in all directions at once, and a likelihood ratio
that is several times larger says no more about their class. So margins are measured in standard deviations, which each
image gives for itself: the mean of its margins, with k = 6 more classes of margin b = 12 for where classes are few.
The three constants were found on images held back (docs/accuracy.md).
"""

from __future__ import annotations

import numpy as np

USUAL_CLASSES, USUAL_MARGIN = 6, 12.0  # k and b: what an image's margins are worth before any is seen
MARGINS_PER_SQUARE = 3.0  # tau^2 is the mean margin divided by it


def softmax(scores: np.ndarray, temperature: float = 1.0, *, calibrated: bool = False) -> np.ndarray:
    """Probabilities [N, C] of scores float64 [N, C], by the equation above.

    Parameters
    ----------
    scores : ndarray
        Float64 [N, C], larger is better.
    temperature : float
        The user's factor; above 1 is less certain.
    calibrated : bool
        Whether every image has a temperature of its own.

    Examples
    --------
    >>> softmax(np.array([[3.0, 1.0, 1.0]])).round(2)
    array([[0.79, 0.11, 0.11]])
    >>> softmax(np.array([[30.0, 10.0, 10.0]]), calibrated=True).round(2)
    array([[1., 0., 0.]])
    """
    margins = scores.max(1, keepdims=True) - scores
    scale = temperature * own_temperatures(margins) if calibrated else temperature
    powers = np.exp(-margins / scale)
    return powers / powers.sum(1, keepdims=True)


def own_temperatures(margins: np.ndarray) -> np.ndarray:
    """tau [N, 1] of margins [N, C].

    >>> own_temperatures(np.array([[0.0, 5.0, 7.0], [0.0, 50.0, 70.0]])).round(2)
    array([[1.87],
           [2.83]])
    """
    total = margins.sum(1, keepdims=True) + USUAL_CLASSES * USUAL_MARGIN
    return np.sqrt(total / (MARGINS_PER_SQUARE * (USUAL_CLASSES + margins.shape[1] - 1)))
