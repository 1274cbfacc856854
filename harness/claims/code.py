"""Python as text: which names are bound where and to what, what is called, and values as far as they are literals.

Nothing is imported and nothing is called. A name has a value where its scope binds it once, by a plain assignment.
Every other way to bind it, such as a loop, a parameter, ``with`` or ``global``, makes its value unsaid.
"""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.claims.documents import DEEPEST, MOST_VALUES

_NUMBERS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "str": str}
#: Calls that give a configuration back, in another form.
_FORMS = ("DictConfig", "create", "unflatten_dict", "replace_keys", "dict")
_CHANGES = ("update", "pop", "popitem", "setdefault", "clear", "__setitem__")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Unsaid(Exception):
    """A value that the source does not say."""


@dataclass(frozen=True)
class Import:
    """A name that comes from another file."""

    module: str
    name: str


#: What binds a name: an assigned value, a parameter, a class or function, an import; None for every other way.
Binding = ast.expr | ast.arg | ast.stmt | Import | None


@dataclass(eq=False)
class Scope:
    """Names that a module, a class, a function or a comprehension binds."""

    node: ast.AST
    outer: "Scope | None" = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)

    def bind(self, name: str, how: Binding) -> None:
        self.bindings.setdefault(name, []).append(how)

    def found(self, name: str) -> list[Binding]:
        """Return how the name is bound where it is read in this scope."""
        scope: Scope | None = self
        while scope is not None:
            seen = scope is self or not isinstance(scope.node, ast.ClassDef)
            if seen and name in scope.bindings and name not in scope.elsewhere:
                return scope.bindings[name]
            scope = scope.outer
        return []


class Code:
    """One file.

    Args:
        config: keys of the configuration, flat, with underscores; None where it is not known.
    """

    def __init__(self, tree: ast.Module, config: Mapping[str, Any] | None) -> None:
        self.tree, self.config, self.looked_up = tree, config, 0
        self.module = Scope(tree)
        self.scopes: dict[ast.AST, Scope] = {}
        self.functions: dict[ast.arg, tuple[ast.AST, int]] = {}
        self.classes: dict[str, list[Scope]] = {}
        self.stored: dict[str, list[str]] = {}  # attributes that are set, with what they are set of
        self.changed: set[str] = set()  # mappings that are changed after they are made
        self.imports: dict[tuple[Scope, str], list[Import]] = {}  # by where a name is read
        self.hidden = False  # whether names may be bound by text
        self.sets = False  # whether attributes may be
        self.starred = 0  # the last line that imports all names of a file
        self._survey()
        self.calls = self._calls()
        self.called: dict[str, list[ast.Call]] = {}
        for name, _, call in self.calls:
            self.called.setdefault(name, []).append(call)

    # Scopes.

    def _survey(self) -> None:
        stack: list[tuple[ast.AST, Scope]] = [(self.tree, self.module)]
        plain: set[ast.AST] = set()
        while stack:
            node, scope = stack.pop()
            self.scopes[node] = scope
            self._bind(node, scope, plain)
            inner, outside = self._inner(node, scope)
            for child in ast.iter_child_nodes(node):
                stack.append((child, scope if child in outside else inner))
        for scope in set(self.scopes.values()):
            for name in scope.elsewhere:
                outer: Scope | None = scope
                while outer := outer.outer if outer else None:
                    outer.bind(name, None) if name in outer.bindings or outer is self.module else None

    def _inner(self, node: ast.AST, scope: Scope) -> tuple[Scope, set[ast.AST]]:
        """The scope of what lies in a node, and the nodes directly in it that belong to the scope around it."""
        if isinstance(node, _FUNCTIONS):
            made, arguments = Scope(node, scope), node.args
            listed = [*arguments.posonlyargs, *arguments.args]
            for place, one in enumerate(listed):
                self.functions[one] = (node, place)
            for one in [*listed, *arguments.kwonlyargs]:
                self.functions.setdefault(one, (node, -1))
                made.bind(one.arg, one)
            for one in (arguments.vararg, arguments.kwarg):
                made.bind(one.arg, None) if one else None
            return made, set(getattr(node, "decorator_list", []))
        if isinstance(node, ast.arguments) and scope.outer:  # whose defaults are read around the function
            return scope.outer, {*node.posonlyargs, *node.args, *node.kwonlyargs}
        if isinstance(node, ast.ClassDef):
            made = Scope(node, scope)
            self.classes.setdefault(node.name, []).append(made)
            return made, {*node.decorator_list, *node.bases, *node.keywords}
        return (Scope(node, scope), set()) if isinstance(node, _COMPREHENSIONS) else (scope, set())

    def _bind(self, node: ast.AST, scope: Scope, plain: set[ast.AST]) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    scope.bind(target.id, node.value)
                    plain.add(target)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node not in plain:
            scope.bind(node.id, None)
        elif isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            while isinstance(scope.node, _COMPREHENSIONS) and scope.outer:
                scope = scope.outer
            scope.bind(node.target.id, None)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            self.stored.setdefault(node.attr, []).append(ast.unparse(node.value))
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            self.changed.add(ast.unparse(node.value))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, scope)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope.bind(node.name, node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            scope.elsewhere.update(node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping):
            name = node.rest if isinstance(node, ast.MatchMapping) else node.name
            scope.bind(name, None) if name else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            self.changed.add(ast.unparse(node.func.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            self.hidden |= node.func.id in ("exec", "globals")
            self.sets |= node.func.id == "setattr"

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for one in node.names:
            if isinstance(node, ast.Import):
                name = one.asname or one.name.partition(".")[0]
                scope.bind(name, Import(one.name, one.name.rpartition(".")[2]))
            elif one.name == "*":
                self.starred = max(self.starred, node.lineno)
            else:
                scope.bind(one.asname or one.name, Import("." * node.level + (node.module or ""), one.name))

    # Names.

    def _binding(self, node: ast.Name) -> list[Binding]:
        return self.scopes[node].found(node.id)

    def name_of(self, node: ast.expr) -> str:
        """The last part of a name or attribute, as it was imported; empty for everything else."""
        if isinstance(node, ast.Attribute):
            return node.attr
        if not isinstance(node, ast.Name):
            return ""
        return next((one.name for one in self._imports(node)), node.id)

    def _imports(self, node: ast.Name) -> list[Import]:
        """The imports that bind a name."""
        key = self.scopes[node], node.id
        if key not in self.imports:
            self.imports[key] = [one for one in self._binding(node) if isinstance(one, Import)]
        return self.imports[key]

    def origin(self, node: ast.expr) -> str | None:
        """The module that a called name is from; empty where the file does not say, None where the file defines it."""
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if not isinstance(first, ast.Name):
            return ""
        bound = self._binding(first)
        modules = [one.module for one in self._imports(first)]
        if isinstance(node, ast.Attribute):
            own = first.id in ("self", "cls") and isinstance(node.value, ast.Name) and any(
                node.attr in scope.bindings for scopes in self.classes.values() for scope in scopes
            )  # fmt: skip
            return None if own else (modules[0] if modules else "")
        if not bound or len(modules) == len(bound):
            return modules[0] if bound else ""
        return f"this file or {modules[0]}" if modules else None

    def _calls(self) -> list[tuple[str, str | None, ast.Call]]:
        """Every call: the last part of its name, the module that the name is from, and the call."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        called = [self._alias(node.func) for node in nodes]
        return [(self.name_of(one), self.origin(one), node) for one, node in zip(called, nodes, strict=True)]

    def _alias(self, node: ast.expr) -> ast.expr:
        """The name or attribute that a name is another word for."""
        for _ in range(DEEPEST):
            found = self._binding(node) if isinstance(node, ast.Name) else []
            if len(found) != 1 or not isinstance(found[0], ast.Name | ast.Attribute):
                break
            node = found[0]
        return node

    def names(self) -> set[str]:
        """Every name that is read, as it was imported."""
        read = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name | ast.Attribute))
        return {self.name_of(node) for node in read}

    def followed(self, node: ast.expr | None, without: ast.AST | None = None) -> ast.expr | None:
        """Return what a name stands for, where one assignment says it, not counting those that contain ``without``."""
        for _ in range(DEEPEST):
            if not isinstance(node, ast.Name) or self.hidden:
                break
            kept = (
                one for one in self._binding(node)
                if not (without and isinstance(one, ast.expr) and without in ast.walk(one))
            )  # fmt: skip
            one, another = next(kept, None), next(kept, self)
            if another is not self or not isinstance(one, ast.expr) or one.lineno < self.starred:
                return None
            node = one
        return node

    # Values.

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """A literal, or what follows from literals.

        Raises:
            Unsaid: it is neither.
        """
        self.looked_up += 1
        if depth > DEEPEST or self.looked_up > MOST_VALUES:
            raise Unsaid
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand, depth)
        if isinstance(node, ast.BinOp) and type(node.op) in _NUMBERS:
            try:
                return _NUMBERS[type(node.op)](self._number(node.left, depth), self._number(node.right, depth))
            except (ArithmeticError, ValueError):
                raise Unsaid from None
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(one, depth + 1) for one in node.elts]
        if isinstance(node, ast.Name):
            return self._once(self._binding(node), depth)
        if isinstance(node, ast.Call):
            return self._called(node, depth)
        if isinstance(node, ast.Attribute) and (of_class := self._of_class(node)) is not None:
            return self._once(of_class, depth)
        return self._configured(self._path(node))

    def _number(self, node: ast.expr, depth: int) -> int | float:
        value = self.value(node, depth + 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e30:
            raise Unsaid
        return value

    def _once(self, found: list[Binding], depth: int) -> Any:
        values = [one for one in found if isinstance(one, ast.expr)]
        if self.hidden or not values or len(values) < len(found) or len({ast.dump(one) for one in values}) > 1:
            raise Unsaid
        if any(one.lineno < self.starred for one in values):
            raise Unsaid
        return self.value(values[0], depth + 1)

    def _called(self, node: ast.Call, depth: int) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args and not node.keywords:
            whole, key = self._path(node.func.value), node.args[0]
            if whole is None or not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                raise Unsaid
            try:
                return self._configured([*whole, key.value])
            except Unsaid:
                if len(node.args) != 2 or self.config is None:
                    raise
                return self.value(node.args[1], depth + 1)
        cast = _CASTS.get(node.func.id) if isinstance(node.func, ast.Name) and not self._binding(node.func) else None
        if cast is None or len(node.args) != 1 or node.keywords:
            raise Unsaid
        value = self.value(node.args[0], depth + 1)
        try:
            return cast(value)
        except (TypeError, ValueError, OverflowError):
            raise Unsaid from None

    def _of_class(self, node: ast.Attribute) -> list[Binding] | None:
        """Return how a class of this file binds ``Class.name``; None where the attribute is no such thing."""
        if not isinstance(node.value, ast.Name) or len(scopes := self.classes.get(node.value.id, [])) != 1:
            return None
        again = [one for one in self.stored.get(node.attr, []) if one != "self"]
        named = [isinstance(one, ast.ClassDef) for one in self._binding(node.value)] == [True]
        return scopes[0].bindings.get(node.attr, []) if named and not again and not self.sets else []

    # The configuration.

    def _configured(self, path: list[str] | None) -> Any:
        name = ".".join(path or []).replace("-", "_")
        if self.config is None or name not in self.config:
            raise Unsaid
        return self.config[name]

    def _path(self, node: ast.expr) -> list[str] | None:
        """The keys that lead from the run configuration to a node; None where it does not lie in it."""
        keys: list[str] = []
        while not self._is_config(node):
            if isinstance(node, ast.Attribute):
                keys.insert(0, node.attr)
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                keys.insert(0, str(node.slice.value))
            else:
                return None
            node = node.value
        return keys

    def _is_config(self, node: ast.expr, depth: int = 0) -> bool:
        """Return whether it is ``context.run_config``, a name for it, or a parameter that always gets it."""
        self.looked_up += 1
        if depth > DEEPEST or self.looked_up > MOST_VALUES or ast.unparse(node) in self.changed:
            return False
        if isinstance(node, ast.Attribute):
            return node.attr == "run_config"
        if isinstance(node, ast.Call):
            known = self.name_of(node.func) in _FORMS and len(node.args) == 1 and not node.keywords
            return known and self._is_config(node.args[0], depth + 1)
        if not isinstance(node, ast.Name) or self.hidden:
            return False
        found = self._binding(node)
        return bool(found) and all(
            self._gets_config(one, depth) if isinstance(one, ast.arg)
            else isinstance(one, ast.expr) and self._is_config(one, depth + 1)
            for one in found
        )  # fmt: skip

    def _gets_config(self, parameter: ast.arg, depth: int) -> bool:
        """Return whether all calls of a function in this file give the configuration; without a call, whether it says
        so."""
        function, place = self.functions[parameter]
        name = getattr(function, "name", "")
        calls = self.called.get(name, [])
        if not name or not calls:
            said = ast.unparse(parameter.annotation) if parameter.annotation else ""
            return parameter.arg == "run_config" or bool(re.search(r"\bUserConfig\b", said))
        return all(
            given is not None and self._is_config(given, depth + 1)
            for given in (_given(call, parameter.arg, place, function) for call in calls)
        )

    # Calls.

    def arguments(self, call: ast.Call, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """The arguments of a call whose values are known, and the text of the others.

        With ``*`` or ``**`` in it, every setting that is not written may be given and is among the others.
        """
        named = {word.arg: word.value for word in call.keywords if word.arg}
        spread = [one for one in call.args if isinstance(one, ast.Starred)]
        spread += [word.value for word in call.keywords if word.arg is None]
        plain = call.args[: next((n for n, one in enumerate(call.args) if isinstance(one, ast.Starred)), None)]
        order = [*settings, *(f"argument {n + 1}" for n in range(len(settings), len(plain)))]
        known, unsaid, placed = {}, {}, dict(zip(order, plain, strict=False))
        written = [*placed, *(word.arg for word in call.keywords if word.arg)]
        twice = {name for name, count in Counter(written).items() if count > 1}
        named = {**placed, **named}
        for name, node in named.items():
            try:
                if name in twice:
                    raise Unsaid
                known[name] = self.value(node)
            except Unsaid:
                unsaid[name] = ast.unparse(node)[:60]
        for one in spread[:1]:
            text = ast.unparse(one)[:60]
            unsaid |= {name: text if text[0] == "*" else f"**{text}" for name in settings if name not in named}
        return known, unsaid


def _given(call: ast.Call, name: str, place: int, function: ast.AST) -> ast.expr | None:
    """Return what a call gives for a parameter."""
    if any(isinstance(one, ast.Starred) for one in call.args):
        return None
    if word := next((word for word in call.keywords if word.arg == name), None):
        return word.value
    arguments = getattr(function, "args", None)
    first = [one.arg for one in [*arguments.posonlyargs, *arguments.args][:1]] if arguments else []
    place -= isinstance(call.func, ast.Attribute) and first in (["self"], ["cls"])
    return call.args[place] if 0 <= place < len(call.args) else None
