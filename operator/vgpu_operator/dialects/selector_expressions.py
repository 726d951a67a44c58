"""Reads the CEL expressions of device selectors, as far as our own selectors can express them.

    expression = all {"||" all}           all  = term {"&&" term}
    term       = ["!"] "(" expression ")" | attribute ("==" | "!=") text
               | attribute "in" "[" text {"," text} "]"
               | ["!"] amount "." ("isGreaterThan" | "isLessThan") "(" amount ")"
               | amount "." "compareTo" "(" amount ")" sign integer | amount ("==" | "!=") amount
    attribute  = device.driver | device.attributes[DOMAIN].NAME
    amount     = device.capacity[DOMAIN].memory | quantity(text); a comparison has one of each

Any other expression is refused: a device that it excludes must never be chosen, and one that it
matches should not be skipped silently. Source: Kubernetes' dynamic-resource-allocation/cel, and
apiserver/pkg/cel/library/quantity.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, NoReturn

from vgpu_api import dra, quantity
from vgpu_api.errors import BadInput, Fault, QuantityError
from vgpu_api.v1alpha1 import DeviceKind, DeviceSelector
from vgpu_api.v1alpha1.vgpuclaim import MAX_KINDS, MAX_MODELS, MAX_PATTERN, MAX_UUIDS

MAX_EXPRESSION = 10 << 10
"""Kubernetes' own limit for the length of an expression."""
_TOKEN = re.compile(
    r"(?:\s|//[^\n]*(?:\n|\Z))*(?:(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>-?[0-9]+)"
    r"|(?P<sign>==|!=|<=|>=|&&|\|\||[<>!().,\[\]])|\Z)"
)
_ESCAPED = re.compile(r"\\(.)")
_EXPECTED = (
    "comparisons of productName or uuid with ==, != and in, and of the capacity memory with "
    "compareTo, isGreaterThan and isLessThan, joined by &&, || and !, such as "
    'device.attributes["vgpu.dev"].productName == "NVIDIA A100-SXM4-80GB" or '
    'device.capacity["vgpu.dev"].memory.compareTo(quantity("20Gi")) >= 0'
)
_TYPE = "hami-gpu"
_MAX_DEPTH = 16
_MOST_MIB = 1 << 40
_LESS, _EQUAL, _GREATER = -1, 0, 1
_ORDERS = (_LESS, _EQUAL, _GREATER)
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


class _OneOf(NamedTuple):
    """A set of names: these, or all except these."""

    names: frozenset[str] = frozenset()
    is_excluded: bool = True

    @property
    def is_empty(self) -> bool:
        return not self.names and not self.is_excluded

    def complement(self) -> _OneOf:
        return _OneOf(self.names, not self.is_excluded)

    def intersection(self, other: _OneOf) -> _OneOf:
        if self.is_excluded and other.is_excluded:
            return _OneOf(self.names | other.names)
        if self.is_excluded:
            return _OneOf(other.names - self.names, is_excluded=False)
        if other.is_excluded:
            return _OneOf(self.names - other.names, is_excluded=False)
        return _OneOf(self.names & other.names, is_excluded=False)

    def union(self, other: _OneOf) -> _OneOf:
        return self.complement().intersection(other.complement()).complement()


_ANY = _OneOf()


@dataclass(frozen=True, slots=True)
class _Case:
    """One way to be a device that is wanted: all of this together. `most_mib` None: no limit."""

    models: _OneOf = _ANY
    uuids: _OneOf = _ANY
    least_mib: int = 0
    most_mib: int | None = None

    @property
    def is_empty(self) -> bool:
        """True if no device can be so; no device has less than 1 MiB."""
        is_over = self.most_mib is not None and self.most_mib < max(self.least_mib, 1)
        return self.models.is_empty or self.uuids.is_empty or is_over

    def both(self, other: _Case) -> _Case:
        tops = [each.most_mib for each in (self, other) if each.most_mib is not None]
        return _Case(
            self.models.intersection(other.models),
            self.uuids.intersection(other.uuids),
            max(self.least_mib, other.least_mib),
            min(tops, default=None),
        )

    def joined(self, other: _Case) -> _Case | None:
        """Return the one case that says the same as both, or None if there is none."""
        common = self.both(other)
        if common in (self, other):
            return self if common == other else other
        differs = (
            self.models != other.models,
            self.uuids != other.uuids,
            (self.least_mib, self.most_mib) != (other.least_mib, other.most_mib),
        )
        if sum(differs) > 1:
            return None
        first, last = sorted((self, other), key=lambda case: case.least_mib)
        if first.most_mib is not None and first.most_mib + 1 < last.least_mib:
            return None
        is_open = first.most_mib is None or last.most_mib is None
        return _Case(
            self.models.union(other.models),
            self.uuids.union(other.uuids),
            first.least_mib,
            None if is_open else max(first.most_mib or 0, last.most_mib or 0),
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """The devices that an expression wants: those of any of its cases."""

    cases: tuple[_Case, ...] = (_Case(),)

    @property
    def is_any(self) -> bool:
        """True if every device will do."""
        return self.cases == (_Case(),)

    def together(self, other: Wanted) -> Wanted:
        """Return what both want."""
        return _of(one.both(another) for one in self.cases for another in other.cases)

    def either(self, other: Wanted) -> Wanted:
        """Return what one of them wants."""
        return _of((*self.cases, *other.cases))

    def selector(self, expression: str, field: str) -> DeviceSelector:
        """Return the selector of the same devices.

        Args:
            expression: What was read, for errors.
            field: The field's path for errors.

        Raises:
            BadInput: No device can be wanted, or no selector can say this.
        """
        why = self._why_not()
        if why:
            raise BadInput(field=field, value=expression, fault=Fault.UNSUPPORTED, detail=why)
        (uuids,) = {case.uuids for case in self.cases}
        kinds = [_kind_of(case) for case in self.cases]
        return DeviceSelector(
            uuids=[] if uuids.is_excluded else sorted(uuids.names),
            exclude_uuids=sorted(uuids.names) if uuids.is_excluded else [],
            kinds=[] if kinds == [DeviceKind()] else kinds,
        )

    def _why_not(self) -> str:
        if not self.cases:
            return "no device can have all these values; leave one of them out"
        if len({case.uuids for case in self.cases}) > 1:
            return "|| cannot join a uuid with anything else; use a pod for each"
        if len(self.cases) > MAX_KINDS:
            return f"it has more than {MAX_KINDS} alternatives; use fewer ||"
        if max(len(case.models.names) for case in self.cases) > MAX_MODELS:
            return f"it names more than {MAX_MODELS} models; name fewer"
        if len(self.cases[0].uuids.names) > MAX_UUIDS:
            return f"it names more than {MAX_UUIDS} devices; name fewer"
        return ""


def _of(cases: Iterable[_Case]) -> Wanted:
    """Return the shortest list of cases that joining pairs finds, in an order of its own."""
    found: list[_Case] = []
    for case in cases:
        if case.is_empty:
            continue
        at = 0
        while at < len(found):
            joined = found[at].joined(case)
            if joined is None:
                at += 1
            else:  # the larger case may now join an earlier one
                case = joined
                del found[at]
                at = 0
        found.append(case)
    return Wanted(tuple(sorted(found, key=_order)))


def _order(case: _Case) -> tuple[object, ...]:
    names = [(each.is_excluded, sorted(each.names)) for each in (case.models, case.uuids)]
    return (*names, case.least_mib, case.most_mib is None, case.most_mib or 0)


def _kind_of(case: _Case) -> DeviceKind:
    models = case.models
    least, most = case.least_mib, case.most_mib
    return DeviceKind(
        model_names=[] if models.is_excluded else sorted(models.names),
        exclude_model_names=sorted(models.names) if models.is_excluded else [],
        min_memory=quantity.format_mib(least) if least else None,
        max_memory=None if most is None else quantity.format_mib(most),
    )


def read_expression(expression: str, field: str) -> Wanted:
    """Return the devices that an expression wants, which a `DeviceSelector` can say.

    Args:
        expression: The CEL expression.
        field: The field's path for errors.

    Raises:
        BadInput: The expression cannot be honoured.
    """
    if len(expression) > MAX_EXPRESSION:
        detail = f"may not be more than {MAX_EXPRESSION} characters"
        raise BadInput(field=field, fault=Fault.TOO_LONG, detail=detail)
    reader = _Reader(expression, field)
    wanted = reader.either(0, is_negated=False)
    if reader.peek():
        reader.refuse(f"{reader.peek()} is not understood here")
    wanted.selector(expression, field)
    return wanted


class _Reader:
    """A recursive descent over the tokens of one expression."""

    def __init__(self, expression: str, field: str) -> None:
        self._expression = expression
        self._field = field
        self._tokens = list(self._split())
        self._at = 0

    def _split(self) -> Iterator[str]:
        end = 0
        while end < len(self._expression):
            match = _TOKEN.match(self._expression, end)
            if match is None:
                self.refuse(f"{self._expression[end : end + 20].strip()} is not understood")
            if match.lastgroup is not None:
                yield match[match.lastgroup]
            end = match.end()

    def refuse(self, why: str) -> NoReturn:
        raise BadInput(
            field=self._field,
            value=self._expression,
            fault=Fault.UNSUPPORTED,
            detail=f"{why}; supported are {_EXPECTED}",
        )

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *allowed: str) -> str:
        token = self.peek()
        if not token or (allowed and token not in allowed):
            self.refuse(f"{token or 'its end'} is not understood here")
        self._at += 1
        return token

    def either(self, depth: int, *, is_negated: bool) -> Wanted:
        found = self._all(depth, is_negated=is_negated)
        while self.peek() == "||":
            self._take()
            found = self._joined(found, self._all(depth, is_negated=is_negated), all_=is_negated)
        return found

    def _all(self, depth: int, *, is_negated: bool) -> Wanted:
        found = self._term(depth, is_negated=is_negated)
        while self.peek() == "&&":
            self._take()
            other = self._term(depth, is_negated=is_negated)
            found = self._joined(found, other, all_=not is_negated)
        return found

    def _joined(self, one: Wanted, other: Wanted, *, all_: bool) -> Wanted:
        # Bounded before it is multiplied: 20 alternatives by 20 by 20 would be many.
        if max(len(one.cases), len(other.cases)) > MAX_KINDS:
            self.refuse(f"it has more than {MAX_KINDS} alternatives")
        return one.together(other) if all_ else one.either(other)

    def _term(self, depth: int, *, is_negated: bool) -> Wanted:
        if depth > _MAX_DEPTH:
            self.refuse("it is nested too deeply")
        if self.peek() == "!":
            self._take()
            if self.peek() == "(":
                return self._term(depth + 1, is_negated=not is_negated)
            return self._compared_amounts(is_negated=not is_negated, is_after_not=True)
        if self.peek() == "(":
            self._take()
            found = self.either(depth + 1, is_negated=is_negated)
            self._take(")")
            return found
        if self.peek() == "quantity" or self._tokens[self._at + 2 : self._at + 3] == ["capacity"]:
            return self._compared_amounts(is_negated=is_negated, is_after_not=False)
        return self._compared_attribute(is_negated=is_negated)

    def _compared_attribute(self, *, is_negated: bool) -> Wanted:
        name = self._attribute()
        sign = self._take("==", "!=", "in")
        values = self._texts() if sign == "in" else [self._text()]
        return self._chosen(name, values, is_excluded=(sign == "!=") != is_negated)

    def _attribute(self) -> str:
        """Return the name of an attribute, or `driver`."""
        self._take("device")
        self._take(".")
        if self._take("driver", "attributes") == "driver":
            return "driver"
        return self._member("attributes")

    def _member(self, what: str) -> str:
        """Return the name behind a domain, as in `["vgpu.dev"].uuid`."""
        self._take("[")
        domain = self._text()
        if domain not in dra.CLASSES:
            self.refuse(f"there are no {what} of {domain}")
        self._take("]")
        if self._take(".", "[") == ".":
            return self._take()
        name = self._text()
        self._take("]")
        return name

    def _texts(self) -> list[str]:
        """Return the texts of a list, at least one."""
        self._take("[")
        found = [self._text()]
        while self._take(",", "]") == ",":
            found.append(self._text())
        return found

    def _text(self) -> str:
        token = self._take()
        if token[0] not in "\"'" or len(token) == 2:
            self.refuse(f"{token} is no text in quotes")
        if not set(_ESCAPED.findall(token)) <= set("\\\"'"):
            self.refuse(f"{token} has an escape other than of a quote or a backslash")
        text = _ESCAPED.sub(r"\1", token[1:-1])
        if len(text) > MAX_PATTERN:
            self.refuse(f"a text has more than {MAX_PATTERN} characters")
        return text

    def _chosen(self, name: str, values: Sequence[str], *, is_excluded: bool) -> Wanted:
        chosen = _OneOf(frozenset(values), is_excluded)
        match name:
            case "productName":
                return _of([_Case(models=chosen)])
            case "uuid":
                return _of([_Case(uuids=chosen)])
            case "driver" if not is_excluded and chosen.names <= {dra.DRIVER, *dra.CLASSES}:
                return Wanted()
            case "type" if not is_excluded and chosen.names == {_TYPE}:
                return Wanted()
        self.refuse(f"{name} with this value is not chosen by")

    def _compared_amounts(self, *, is_negated: bool, is_after_not: bool) -> Wanted:
        """Return the devices whose memory compares to a quantity as it says."""
        left = self._amount()
        if not is_after_not and self.peek() in ("==", "!="):
            sign = self._take()
            orders, right = _orders(sign, _EQUAL), self._amount()
        else:
            self._take(".")
            method = self._take("isGreaterThan", "isLessThan", "compareTo")
            self._take("(")
            right = self._amount()
            self._take(")")
            if method != "compareTo":
                orders = {_GREATER if method == "isGreaterThan" else _LESS}
            elif is_after_not:
                self.refuse("! stands before a number")
            else:
                sign = self._take(*_COMPARISONS)
                orders = _orders(sign, self._integer())
        if (left is None) == (right is None):
            self.refuse("the capacity memory is compared with a quantity, each once")
        if is_negated:
            orders = set(_ORDERS) - orders
        if left is not None:
            return _with_memory(left, {-order for order in orders})
        assert right is not None
        return _with_memory(right, orders)

    def _amount(self) -> Fraction | None:
        """Return a quantity in bytes, or None for the memory of the device."""
        if self._take("quantity", "device") == "quantity":
            self._take("(")
            written = self._text()
            self._take(")")
            try:
                return quantity.parse(written)
            except QuantityError:
                self.refuse(f"{written} is no quantity such as 20Gi")
        self._take(".")
        self._take("capacity")
        name = self._member("capacities")
        if name != "memory":
            self.refuse(f"the capacity {name} is not chosen by")
        return None

    def _integer(self) -> int:
        token = self._take()
        if not re.fullmatch("-?[0-9]{1,9}", token):
            self.refuse(f"{token} is no whole number")
        return int(token)


def _orders(sign: str, number: int) -> set[int]:
    """Return the comparison results for which `result sign number` is true."""
    return {order for order in _ORDERS if _COMPARISONS[sign](order, number)}


def _with_memory(size: Fraction, orders: set[int]) -> Wanted:
    """Return the devices whose memory has one of these orders to a size in bytes.

    A device's memory is a whole number of MiB, and far from both bounds.
    """
    mib = min(max(size / quantity.MIB, Fraction(-1)), Fraction(_MOST_MIB))
    below, above = -(-mib // 1) - 1, mib // 1 + 1
    cases = []
    if _LESS in orders:
        cases.append(_Case(most_mib=below))
    if _EQUAL in orders and mib.denominator == 1:
        cases.append(_Case(least_mib=max(mib.numerator, 0), most_mib=mib.numerator))
    if _GREATER in orders:
        cases.append(_Case(least_mib=max(above, 0)))
    return _of(cases)
