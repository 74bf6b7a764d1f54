"""Scores that several tasks share; each takes predictions and references, equally many, and gives means in 0..1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from rouge_score.rouge_scorer import RougeScorer

from ...errors import DataError

_WORD = re.compile(r"\w+")


def mean(score: Callable[[str, str], float], predictions: Sequence[str], references: Sequence[str]) -> float:
    """Mean of `score` over the pairs.  Raises DataError when there are none or their numbers differ."""
    check_pairs(predictions, references)
    return sum(map(score, predictions, references)) / len(references)


def check_pairs(predictions: Sequence[str], references: Sequence[str]) -> None:
    """Raise DataError when there is nothing to score or something is missing."""
    if not references or len(predictions) != len(references):
        raise DataError(f"{len(predictions)} predictions for {len(references)} references", "equally many, not none")


def exact_match(prediction: str, reference: str) -> float:
    """1 when both texts are equal but for white space around them."""
    return float(prediction.strip() == reference.strip())


def token_f1(prediction: str, reference: str) -> float:
    """Harmonic mean of precision and recall of the words, in any order, without case and punctuation."""
    found, wanted = Counter(_words(prediction)), Counter(_words(reference))
    if not found or not wanted:
        return float(found == wanted)
    common = (found & wanted).total()
    return 2 * common / (found.total() + wanted.total())


def text_score(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Word F1 and exact match: the score of sources that have no task."""
    return {
        "token_f1": mean(token_f1, predictions, references),
        "exact_match": mean(exact_match, predictions, references),
    }


def rouge_score(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L with stemming, as rouge-score defines them."""
    names = ["rouge1", "rouge2", "rougeL"]
    check_pairs(predictions, references)
    scorer = RougeScorer(names, use_stemmer=True)
    scores = [scorer.score(*pair) for pair in zip(references, predictions, strict=True)]
    return {name: sum(score[name].fmeasure for score in scores) / len(scores) for name in names}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
