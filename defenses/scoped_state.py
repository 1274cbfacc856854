"""One part's own view of a memory that a whole stack of defenses shares."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ScopedState(MutableMapping[str, Tensor]):
    """The entries of ``shared`` whose names begin with ``prefix``, under the rest of their names."""

    shared: MutableMapping[str, Tensor]
    prefix: str

    def __getitem__(self, name: str) -> Tensor:
        return self.shared[self.prefix + name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.shared[self.prefix + name] = value

    def __delitem__(self, name: str) -> None:
        del self.shared[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in list(self.shared) if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
