"""Which versions of a package a project asks for, and whether they lie below one that mended a filter."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


@dataclass
class Asked:
    """What dependencies ask of one package.

    Attributes:
        ranges: one for each line that names it; None for one that is no range, such as an address.
    """

    text: str
    ranges: list[SpecifierSet | None] = field(default_factory=list)

    @property
    def pinned(self) -> str | None:
        """The one version that every line names; None where there is none."""
        found = {str(one).removeprefix("==") for one in self.ranges}
        text = found.pop() if len(found) == 1 else ""
        return None if not text or set("*<>=~!,") & set(text) else _short(text)

    def below(self, since: str) -> tuple[bool, str | None]:
        """Whether an older version may be installed, and one of the older ones if no other may be."""
        limit, newer, older = Version(since), False, []
        for one in self.ranges:
            try:
                admitted = [] if one is None else [v for v in _candidates(one, limit) if one.contains(v, True)]
            except InvalidVersion:  # of a comparison by letters
                admitted = []
            newer |= not admitted or any(version >= limit for version in admitted)
            older += [version for version in admitted if version < limit] if admitted else [Version("0")]
        return bool(older), None if newer or not older else _short(str(max(older)))


def asked_of(package: str, dependencies: Iterable[str], poetry: object = None) -> Asked | None:
    """What lines of dependencies ask of a package, without markers and extras; None where none names it.

    Args:
        poetry: the package's version in Poetry's table of dependencies, where it has one.
    """
    found = Asked(package)
    for line in dependencies:
        try:
            required = Requirement(line)
        except InvalidRequirement:
            continue
        if canonicalize_name(required.name) == canonicalize_name(package):
            found.ranges.append(None if required.url else required.specifier)
    if poetry is not None:
        found.ranges.append(_poetry(poetry))
    if not found.ranges:
        return None
    found.text = " or ".join(dict.fromkeys(f"{package} {'' if one is None else one}".strip() for one in found.ranges))
    return found


def _poetry(said: object) -> SpecifierSet | None:
    text = said.get("version") if isinstance(said, dict) else said
    if not isinstance(text, str):
        return None
    try:
        if text[:1] in "^~" and text[1:2] != "=":
            low = Version(text.lstrip("^~"))
            above = f"{low.major + 1}" if text[0] == "^" and low.major else f"{low.major}.{low.minor + 1}"
            return SpecifierSet(f">={low},<{above}")
        return SpecifierSet(f"=={text}" if text[:1].isdigit() else text.replace("*", ""))
    except (InvalidSpecifier, InvalidVersion):
        return None


def _candidates(asked: SpecifierSet, limit: Version) -> list[Version]:
    """Versions among which one is admitted on each side of the limit, if any is: the ends of ranges and beside them."""
    ends = [limit, *(Version(one.version.removesuffix(".*")) for one in asked)]
    beside = [Version(f"{end.base_version}.0.0.1") for end in ends]
    return [Version("0"), Version("9999"), *ends, *beside, *(_before(end) for end in ends)]


def _before(version: Version) -> Version:
    release = list(version.release)
    while release and release[-1] == 0:
        release.pop()
    return Version(".".join(map(str, [*release[:-1], release[-1] - 1, 9999]))) if release else Version("0")


def _short(text: str) -> str | None:
    """A version without epoch and local parts."""
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    return ".".join(map(str, version.release)) + "".join(map(str, version.pre or ()))
