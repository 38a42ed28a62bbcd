"""Sets of image files: one set (as it is, or corrupted when it is read), and folders of corruptions and severities."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from wildtta.corruptions import CORRUPTIONS, EXTRA
from wildtta.data.base import Data, DataError, Finding, some
from wildtta.data.classes import Matching, imagenet_names, match, subset
from wildtta.data.listing import (
    ANNOTATIONS,
    Listing,
    annotated,
    class_folders,
    hash_of,
    joined,
    listed,
    part_folder,
    top_folder,
)
from wildtta.data.pictures import ImageFiles, PictureDomain, Pictures, spread
from wildtta.data.places import Place, open_place
from wildtta.models import Model

__all__ = [
    "CorruptionFolders",
    "OneSet",
    "PictureData",
    "Source",
    "class_set",
    "clean_set",
    "find_corruptions",
    "listed_set",
]

_SUBSETS = ("imagenet-r", "imagenet-a")
_HASHED = 16  # class folders of each kind and severity whose files enter a digest


class Source:
    """Uncorrupted images, drawn evenly from all classes."""

    def __init__(self, pictures: ImageFiles, classes: Sequence[str], notes: Sequence[Finding] = ()) -> None:
        self.pictures, self.notes = pictures, tuple(notes)
        self._order = _evenly(classes)

    @classmethod
    def open(cls, path: str, model: Model, classes: Sequence[str], *, exact: bool) -> Source:
        """Images in class folders; of these classes only, where there are folders named so."""
        place = open_place(Path(path).expanduser())
        at = part_folder(place, "train")
        listing = class_folders(place, at)
        wanted, notes = set(classes), []
        if known := tuple(pair for pair in listing if pair[0] in wanted):
            listing = known
        else:
            names = list(dict.fromkeys(name for name, _ in listing))
            text = f"none of the {len(names):,} folders ({some(names, 3)}) is named after a class of the data"
            notes = [Finding("warning", f"{text} ({some(classes, 3)}); all images are used")]
        pictures = ImageFiles(place, [file for _, file in listing], model.preprocessing, exact=exact, at=at)
        return cls(pictures, [name for name, _ in listing], notes)

    def draw(self, count: int) -> Tensor:
        """Up to so many images; those that cannot be read are replaced by others."""
        found: list[Tensor] = []
        rest = iter(self._order)
        while (lacking := count - sum(map(len, found))) and (numbers := list(itertools.islice(rest, lacking))):
            found.append(self.pictures.read(torch.tensor(numbers))[0])
        if not any(map(len, found)):
            reasons = some(list(self.pictures.unreadable.values()), 3)
            raise DataError(f"none of the source images in {self.pictures.place.path} can be read: {reasons}")
        return torch.cat(found).float() / 255

    def check(self) -> list[Finding]:
        """How many there are, and what is wrong with them."""
        where = f"source images in {self.pictures.place.path}"
        wrong = [*self.notes, *(finding for finding in self.pictures.check() if finding.level != "ok")]
        return [Finding("ok", f"{where}: {self.pictures.count:,}"), *_prefixed(where, wrong)]

    def digest(self) -> str:
        return _hash(self.pictures)


def _prefixed(where: str, findings: Iterable[Finding]) -> list[Finding]:
    return [Finding(finding.level, f"{where}: {finding.text}") for finding in findings]


def _hash(pictures: ImageFiles) -> str:
    return hash_of(pictures.place, map(pictures.name, range(pictures.count)))


def _evenly(classes: Sequence[str]) -> list[int]:
    """All numbers, shuffled such that every start of the order has the classes as evenly as can be."""
    generator = random.Random(0)  # of a fixed algorithm: the same order with every version
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(classes):
        groups.setdefault(name, []).append(number)
    for group in groups.values():
        generator.shuffle(group)
    order: list[int] = []
    for turn in range(max(map(len, groups.values()))):
        here = [group[turn] for group in groups.values() if turn < len(group)]
        generator.shuffle(here)
        order += here
    return order


class PictureData(Data):
    """What the layouts share: classes matched with the model's outputs, source images, and the preflight."""

    def __init__(
        self, name: str, where: str, matching: Matching, notes: Sequence[Finding], source: Source | None
    ) -> None:
        self.name, self.where = name, where
        self.classes, self.outputs = matching.classes, matching.outputs
        self.notes = list(notes)
        if matching.assumed:
            self.notes.append(Finding("warning", matching.assumed))
        self._source = source

    @abstractmethod
    def domain(self, kind: str, severity: int) -> PictureDomain: ...

    def source(self, count: int) -> Tensor | None:
        return None if self._source is None else self._source.draw(count)

    def digest(self) -> str:
        parts = [self.name, *self.classes, self._digest(), "" if self._source is None else self._source.digest()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    @abstractmethod
    def _digest(self) -> str:
        """Of the images alone, without the source images."""

    def check(self, kinds: Iterable[str], severities: Iterable[int], *, deep: bool = False) -> list[Finding]:
        findings = list(self.notes)
        checked: list[Pictures] = []
        counts = []
        for kind, severity in itertools.product(kinds, severities):
            try:
                domain = self.domain(kind, severity)
            except DataError as error:
                findings.append(Finding("error", str(error)))
                continue
            counts.append(len(domain))
            if domain.pictures not in checked:  # those that are corrupted when read are of one set
                checked.append(domain.pictures)
                findings += _prefixed(self.where, domain.check(deep=deep))
        if counts:
            images = some([f"{count:,}" for count in sorted(set(counts))])
            findings.append(Finding("ok", f"{self.where}: {images} images of {len(self.classes):,} classes"))
        if self._source is not None and self._source.pictures not in checked:
            findings += self._source.check()
        return list(dict.fromkeys(findings))


def _matched(name: str, where: str, classes: Iterable[str], model: Model) -> tuple[Matching, list[Finding]]:
    """Which outputs the classes are, and what there is to say about those that are not there."""
    names = sorted(set(classes))
    matching = match(names, model, where, imagenet=all(re.fullmatch(r"n\d{8}", name) for name in names))
    expected = subset(name) if name in _SUBSETS else None
    if expected is not None and (strange := [name for name in names if name not in expected]):
        raise DataError(
            f"{where} is not {name}: {len(strange):,} of its {len(names):,} classes are not among the {len(expected)} of that "
            f"set: {some(strange)}; name the layout that it is"
        )
    if matching.outputs is None:
        return matching, []
    text = f"{where} has {len(names):,} of the {model.outputs:,} classes of {model.name}; its head is cut down to these"
    if expected is not None and len(names) == len(expected):
        return matching, [Finding("ok", text)]
    return matching, [
        Finding("warning", text + (f" (the whole set has {len(expected)})" if expected is not None else ""))
    ]


# -- one set of images -------------------------------------------------------------------------------------------------


class OneSet(PictureData):
    """One set of images: a single domain; or, `corruptible`, "clean" and the corruptions of it, made as it is read."""

    def __init__(
        self,
        name: str,
        pictures: ImageFiles,
        labels: Tensor,
        matching: Matching,
        notes: Sequence[Finding],
        source: Source | None,
        *,
        corruptible: bool,
    ) -> None:
        super().__init__(name, f"{name}:{pictures.place.path}", matching, notes, source)
        self.pictures, self.labels = pictures, labels
        self.kinds = ("clean", *CORRUPTIONS, *EXTRA) if corruptible else (name,)
        self.severities = (1, 2, 3, 4, 5) if corruptible else (0,)
        self.on_the_fly = corruptible

    def domain(self, kind: str, severity: int) -> PictureDomain:
        if kind not in self.kinds:
            raise self._no_such_kind(kind, self.where)
        if kind in ("clean", self.name):
            return PictureDomain(kind, 0, self.labels, self.pictures)
        if severity not in self.severities:
            raise DataError(f"{self.where} has {kind} at severities 1 to 5, not at {severity}")
        return PictureDomain(kind, severity, self.labels, self.pictures, kind)

    def _digest(self) -> str:
        return f"{_hash(self.pictures)}\n{self.labels.tolist()}"


def _one_set(
    name: str,
    place: Place,
    at: str,
    listing: Listing,
    model: Model,
    source: str | None,
    *,
    exact: bool = False,
    corruptible: bool = False,
) -> OneSet:
    matching, notes = _matched(name, f"{name}:{place.path}", (group for group, _ in listing), model)
    pictures = ImageFiles(place, [file for _, file in listing], model.preprocessing, exact=exact, at=at)
    labels = torch.tensor([matching.label[group] for group, _ in listing])
    own = Source(pictures, [group for group, _ in listing]) if corruptible else None
    given = own if source is None else Source.open(source, model, matching.classes, exact=exact)
    return OneSet(name, pictures, labels, matching, notes, given, corruptible=corruptible)


def clean_set(name: str, *, exact: bool = False) -> Callable[[Path, Model, str | None], Data]:
    """Uncorrupted images in class folders, or as Tiny-ImageNet's validation images were published."""

    def build(path: Path, model: Model, source: str | None) -> Data:
        place = open_place(path)
        at = part_folder(place, "val")
        listing = annotated(place, at) if ANNOTATIONS in place.files(at) else class_folders(place, at)
        return _one_set(name, place, at, listing, model, source, exact=exact, corruptible=True)

    return build


def class_set(name: str) -> Callable[[Path, Model, str | None], Data]:
    """A single domain in class folders, which are named after WordNet ids or after ImageNet's class numbers."""

    def build(path: Path, model: Model, source: str | None) -> Data:
        place = open_place(path)
        at = top_folder(place)
        listing = class_folders(place, at)
        if all(re.fullmatch(r"\d{1,3}", group) for group, _ in listing):
            names = imagenet_names(model, f"{name}:{path}")
            listing = tuple(sorted((names[int(group)], file) for group, file in listing))
        return _one_set(name, place, at, listing, model, source)

    return build


def listed_set(name: str) -> Callable[[Path, Model, str | None], Data]:
    """A single domain in a list file. The head stays whole, as published; images of unknown classes are left out."""

    def build(path: Path, model: Model, source: str | None) -> Data:
        place, where = open_place(path), f"{name}:{path}"
        lists = [file for file in place.files() if file.endswith(".txt") and not file.lower().startswith("readme")]
        if len(lists) != 1:
            found = f"has {some(lists)}" if lists else f"has only {some(place.folders() + place.files())}"
            raise DataError(f"{where} must hold one list of its images (a .txt of lines PATH LABEL), but {found}")
        pairs, names = listed(place, lists[0]), imagenet_names(model, where)
        known = tuple(sorted((names[label], file) for label, file in pairs if 0 <= label < len(names)))
        if not known:
            raise DataError(
                f"{place.at(lists[0])} has no label from 0 to {len(names) - 1}, so no image of a known class"
            )
        matching = match(sorted({group for group, _ in known}), model, where, imagenet=True, whole=True)
        notes = []
        if len(known) < len(pairs):
            text = f"{len(pairs) - len(known):,} of {len(pairs):,} images are of classes that ImageNet does not have"
            notes.append(Finding("ok", f"{where}: {text} (labels not from 0 to {len(names) - 1}); they are left out"))
        pictures = ImageFiles(place, [file for _, file in known], model.preprocessing)
        labels = torch.tensor([matching.label[group] for group, _ in known])
        given = None if source is None else Source.open(source, model, matching.classes, exact=False)
        return OneSet(name, pictures, labels, matching, notes, given, corruptible=False)

    return build


# -- a folder for each corruption and severity -------------------------------------------------------------------------


def find_corruptions(place: Place) -> tuple[str, dict[str, list[int]]]:
    """Where the folders of corruptions lie, and the severities of each of them."""
    at = ""
    while True:
        kinds = {}
        for kind in place.folders(at):
            if severities := [int(name) for name in place.folders(joined(at, kind)) if name in tuple("12345")]:
                kinds[kind] = severities
        folders = place.folders(at)
        if kinds or len(folders) != 1:
            return at, kinds
        at = joined(at, folders[0])


class CorruptionFolders(PictureData):
    """ImageNet-C as it was published: CORRUPTION/SEVERITY/CLASS/*.JPEG, in the same order for all of them."""

    def __init__(self, name: str, path: Path, model: Model, source: str | None, *, exact_source: bool) -> None:
        self.place = open_place(path)
        self._at, self._found = find_corruptions(self.place)
        if not self._found:
            content = some(self.place.folders() + self.place.files())
            raise DataError(
                f"{name}:{path} has no folders CORRUPTION/SEVERITY/CLASS (fog/5/n01440764, say), only {content}; give the "
                "folder that holds the corruptions, unpacked"
            )
        self._folders = {
            (kind, severity): self.place.folders(self._folder(kind, severity))
            for kind, severities in self._found.items()
            for severity in severities
        }
        self._all = sorted(set().union(*self._folders.values()))
        if not self._all:
            raise DataError(f"{name}:{path} has no class folders below its corruptions and severities; unpack it again")
        where = f"{name}:{path}"
        self._matching, notes = _matched(name, where, self._all, model)
        given = None if source is None else Source.open(source, model, self._matching.classes, exact=exact_source)
        super().__init__(name, where, self._matching, notes, given)
        known = (*CORRUPTIONS, *EXTRA)
        self.kinds = (*(kind for kind in known if kind in self._found), *sorted(set(self._found) - set(known)))
        self.severities = tuple(sorted(set(itertools.chain(*self._found.values()))))
        self._preprocessing = model.preprocessing
        self._first: dict[str, int] = {}
        self._listings: dict[str, Listing] = {}

    def _folder(self, kind: str, severity: int) -> str:
        return joined(self._at, kind, str(severity))

    def domain(self, kind: str, severity: int) -> PictureDomain:
        if kind not in self._found:
            raise self._no_such_kind(kind, self.where, "; unpack it there")
        if severity not in self._found[kind]:
            raise DataError(f"{self.where} has {kind} at severity {some(self._found[kind])}, not at {severity}")
        listing = self._list(kind, severity)
        files = [file for _, file in listing]
        pictures = ImageFiles(self.place, files, self._preprocessing, exact=True, at=self._folder(kind, severity))
        labels = torch.tensor([self._matching.label[group] for group, _ in listing])
        return PictureDomain(kind, severity, labels, pictures)

    def _list(self, kind: str, severity: int) -> Listing:
        """The images of a kind and severity; those of a kind must be the same ones at all severities."""
        at = self._folder(kind, severity)
        if lacking := sorted(set(self._all) - set(self._folders[kind, severity])):
            raise DataError(
                f"{self.place.at(at)} lacks {len(lacking):,} of the {len(self._all):,} class folders that the others have: "
                f"{some(lacking)}; unpack it again"
            )
        listing = class_folders(self.place, at)
        first = self._first.setdefault(kind, severity)
        shared = next((known for known in self._listings.values() if known == listing), listing)  # to save memory
        same = self._listings.setdefault(kind, shared)
        if listing != same:
            other = sorted(file for _, file in set(listing) ^ set(same))
            raise DataError(
                f"{self.place.at(at)} and {self.place.at(self._folder(kind, first))} do not have the same images "
                f"({len(other):,} are in one alone: {some(other, 3)}), so image k of one is not image k of the other; unpack both "
                "again"
            )
        return same

    def _digest(self) -> str:
        names, files = [], []
        for (kind, severity), folders in self._folders.items():
            at = self._folder(kind, severity)
            names += [joined(at, folder) for folder in folders]
            for number in spread(len(folders), _HASHED):
                folder = joined(at, folders[number])
                files += [joined(folder, file) for file in self.place.images(folder)]
        return "\n".join([*names, hash_of(self.place, files)])
