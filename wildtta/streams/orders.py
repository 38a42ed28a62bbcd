"""The orders behind the scenarios: from labels and a seed to (domain, image) pairs, in numpy.

All randomness is local and from generators whose streams are frozen (`random.Random`, `numpy.random.RandomState`), so a
seed means the same order in every process and with every version of numpy.

An arrangement is called with the labels of each domain, the (kind, severity) of each domain where known, the seed and
the complete options; it gives two int64 arrays, the place of the domain and the number of the image within it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .options import INFINITE_RATIO

__all__ = ["Arrangement", "correlated", "gradual", "label_shift", "mixed", "one_after_another"]

Numbers: TypeAlias = npt.NDArray[np.int64]
Domains: TypeAlias = Sequence[tuple[str, int]]
Arrangement: TypeAlias = Callable[[list[Numbers], "Domains | None", int, dict[str, Any]], tuple[Numbers, Numbers]]

_PUBLISHED_RATIOS = (1.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0, INFINITE_RATIO)
_PUBLISHED_DRAWS = 2022  # the seed of the draws, whatever the seed of the class order


def one_after_another(
    labels: list[Numbers], domains: Domains | None, seed: int, options: dict[str, Any]
) -> tuple[Numbers, Numbers]:
    """Each domain shuffled, all images of one before the first of the next."""
    return _concatenated(enumerate(_shuffled(labels, seed, options["length"])))


def mixed(
    labels: list[Numbers], domains: Domains | None, seed: int, options: dict[str, Any]
) -> tuple[Numbers, Numbers]:
    """All images of all domains in one shuffled order."""
    domain, index = one_after_another(labels, domains, seed, options)
    order = _generator(seed, len(labels)).permutation(len(index))
    return domain[order], index[order]


def gradual(
    labels: list[Numbers], domains: Domains | None, seed: int, options: dict[str, Any]
) -> tuple[Numbers, Numbers]:
    """The severity of each kind rises from 1 to its highest and falls back to 1; every step has an equal share."""
    kinds = _severities(labels, domains)
    pieces: list[tuple[int, Numbers]] = []
    images = _shuffled([labels[places[0]] for places in kinds], seed, options["length"])
    for places, order in zip(kinds, images, strict=True):
        path = places + places[-2::-1]
        pieces += zip(path, np.array_split(order, len(path)), strict=True)
    return _concatenated(pieces)


def correlated(
    labels: list[Numbers], domains: Domains | None, seed: int, options: dict[str, Any]
) -> tuple[Numbers, Numbers]:
    """Each domain in an order in which images of a class come close together, the domains one after another."""
    pieces = []
    for place, order in enumerate(_shuffled(labels, seed, options["length"])):
        generator = _generator(seed, len(labels) + place)
        shown = labels[place][order]
        pieces.append((place, order[_clustered(shown, options["concentration"], options["slots"], generator)]))
    return _concatenated(pieces)


def label_shift(
    labels: list[Numbers], domains: Domains | None, seed: int, options: dict[str, Any]
) -> tuple[Numbers, Numbers]:
    """Each domain in an order in which one class after another is the likely one, the domains one after another.

    The two generators of the recipe go on from domain to domain: the first domain has the published stream, the k-th
    takes the seven class orders that follow.
    """
    ratio, repeats, length = options["ratio"], options["repeats"], options["length"]
    shuffles, draws = random.Random(seed), np.random.RandomState(_PUBLISHED_DRAWS)
    pieces = []
    for place, mine in enumerate(labels):
        shown = np.arange(len(mine)) if repeats else next(_shuffled([mine], seed, length, first=place))
        classes, rank = np.unique(mine[shown], return_inverse=True)
        order = _class_order(len(classes), ratio, shuffles)
        if repeats:
            picked = _drawn(rank, order, ratio, length or 2 * len(mine), draws)
        else:
            picked = _dealt(rank, order, ratio, _generator(seed, len(labels) + place))
        pieces.append((place, shown[picked]))
    return _concatenated(pieces)


# -- the label shift ---------------------------------------------------------------------------------------------------


def _class_order(classes: int, ratio: float, shuffles: random.Random) -> list[int]:
    """The order in which the classes are the likely one.

    The published script shuffles a new list for each of its seven ratios, so the order depends on the place of the ratio
    among them. A ratio that is not among them takes the last shuffle, that of infinity.
    """
    orders = []
    for _ in _PUBLISHED_RATIOS:
        order = list(range(classes))
        shuffles.shuffle(order)
        orders.append(order)
    return orders[_PUBLISHED_RATIOS.index(ratio)] if ratio in _PUBLISHED_RATIOS else orders[-1]


def _drawn(rank: Numbers, order: list[int], ratio: float, length: int, draws: np.random.RandomState) -> Numbers:
    """The published recipe: first a class for each moment, then an image of it, both with replacement.

    One `choice` of n classes takes the same numbers from the generator as n of one class. Since these draws have a seed
    of their own, the published one, the stream's seed decides the order of the classes and nothing else.
    """
    classes = len(order)
    minor = 1 / (ratio + classes - 1)
    stream = []
    for turn, likely in enumerate(order):
        moments = (turn + 1) * length // classes - turn * length // classes
        probabilities = np.full(classes, minor)
        probabilities[likely] = ratio * minor
        stream.append(draws.choice(classes, moments, p=probabilities))
    drawn = np.concatenate(stream)

    images, counts = np.argsort(rank, kind="stable"), np.bincount(rank, minlength=classes)
    first = np.cumsum(counts) - counts
    index = np.empty(length, dtype=np.int64)
    moments_of = np.split(np.argsort(drawn, kind="stable"), np.cumsum(np.bincount(drawn, minlength=classes))[:-1])
    for start, count, places in zip(first, counts, moments_of, strict=True):
        if len(places):
            index[places] = images[start + draws.randint(0, count, len(places))]
    return index


def _dealt(rank: Numbers, order: list[int], ratio: float, generator: np.random.RandomState) -> Numbers:
    """The same kind of stream without a repeat: every image once.

    Drawing class c with probability r/(r + C − 1) and each other with 1/(r + C − 1) is the same as taking c with
    probability (r − 1)/(r + C − 1), and any class at all otherwise. So the images are laid out class by class; each keeps
    its place with that probability, and the others are shuffled among the places left. Where classes are of equal size,
    the classes have the recipe's own distribution at every moment; ratio 1 is a plain shuffle.
    """
    classes = len(order)
    turn = np.empty(classes, dtype=np.int64)
    turn[order] = np.arange(classes)
    dealt = np.argsort(turn[rank], kind="stable")
    away = np.flatnonzero(generator.random_sample(len(dealt)) >= (ratio - 1) / (ratio + classes - 1))
    dealt[away] = dealt[generator.permutation(away)]
    return dealt


# -- the correlated stream ---------------------------------------------------------------------------------------------


def _clustered(labels: Numbers, concentration: float, slots: int | None, generator: np.random.RandomState) -> Numbers:
    """An order of images in which those of a class cluster: the smaller the concentration, the more.

    Time is cut into slots. Each class draws its shares of the slots from a symmetric Dirichlet distribution, and each of
    its images a slot by these shares; within a slot the classes come one after another in random order. This is the
    stream of RoTTA (Yuan et al., 2023), slots included: one a class, at most 100. RoTTA and NOTE (Gong et al., 2022) round
    the shares to whole images instead, which puts all classes into the same few slots where shares are even; NOTE also
    evens out the sizes of its slots.
    """
    classes, rank = np.unique(labels, return_inverse=True)
    slots = min(len(classes), 100) if slots is None else slots
    if slots > len(labels):
        raise ValueError(
            f"slots must be at most the number of images that a kind shows, {len(labels)}, not {slots}; take fewer"
        )
    shares = _dirichlet(len(classes), slots, concentration, generator)
    slot = np.empty(len(labels), dtype=np.int64)
    of_class = np.split(np.argsort(rank, kind="stable"), np.cumsum(np.bincount(rank))[:-1])
    for images, share in zip(of_class, shares, strict=True):
        slot[images] = np.searchsorted(share.cumsum()[:-1], generator.random_sample(len(images)), side="right")
    turn = generator.random_sample((slots, len(classes))).argsort(axis=1, kind="stable").argsort(axis=1)
    return np.lexsort((turn[slot, rank], slot))


def _dirichlet(
    draws: int, slots: int, concentration: float, generator: np.random.RandomState
) -> npt.NDArray[np.float64]:
    """Symmetric Dirichlet draws, by logarithms of gamma variates.

    numpy's own divides zero by zero where the concentration is small, since such gamma variates underflow. If
    X ~ Gamma(a + 1) and U ~ Uniform(0, 1), then X · U^(1/a) ~ Gamma(a).
    """
    logs = np.log(generator.standard_gamma(concentration + 1, (draws, slots)))
    logs += np.log1p(-generator.random_sample((draws, slots))) / concentration
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True), dtype=np.float64)


# -- common ------------------------------------------------------------------------------------------------------------


def _generator(seed: int, place: int) -> np.random.RandomState:
    """Of its own for each domain, so that they are shown in unrelated orders."""
    return np.random.RandomState([seed, place])


def _shuffled(labels: Sequence[Numbers], seed: int, length: int | None, first: int = 0) -> Iterator[Numbers]:
    """The images of each domain in random order; all scenarios start from it, so that a length picks the same in all."""
    for place, mine in enumerate(labels, start=first):
        if length is not None and length > len(mine):
            raise ValueError(
                f"length must be at most the number of images of each kind, but one has {len(mine)} and length "
                f"is {length}; leave it out to show all"
            )
        yield _generator(seed, place).permutation(len(mine)).astype(np.int64)[:length]


def _concatenated(pieces: Iterable[tuple[int, Numbers]]) -> tuple[Numbers, Numbers]:
    pieces = list(pieces)
    domain = np.repeat(np.array([place for place, _ in pieces], dtype=np.int64), [len(order) for _, order in pieces])
    return domain, np.concatenate([order for _, order in pieces])


def _severities(labels: list[Numbers], domains: Domains | None) -> list[list[int]]:
    """For each kind the places of its severities 1, 2, ... up to its highest, which must hold the same images."""
    if domains is None:
        raise TypeError(
            "a gradual stream needs to know the kind and the severity of each domain; give domains=, the element of "
            "`streams(...)` that the labels belong to"
        )
    kinds: dict[str, dict[int, int]] = {}
    for place, (kind, severity) in enumerate(domains):
        if severity in kinds.setdefault(kind, {}):
            raise ValueError(f"domains holds {(kind, severity)!r} more than once; name each domain once")
        kinds[kind][severity] = place
    for kind, places in kinds.items():
        if sorted(places) != list(range(1, len(places) + 1)):
            raise ValueError(
                f"a gradual stream needs the severities 1, 2, ... of {kind!r}, but was given {sorted(places)}; "
                "take the domains that `streams(...)` lists"
            )
        for severity, place in places.items():
            if not np.array_equal(labels[place], labels[places[1]]):
                raise ValueError(
                    f"the severities of {kind!r} must hold the same images, but the labels of severity {severity} differ "
                    f"from those of severity 1 ({len(labels[place])} and {len(labels[places[1]])} images); "
                    "complete the folders"
                )
    return [[places[severity] for severity in sorted(places)] for places in kinds.values()]
