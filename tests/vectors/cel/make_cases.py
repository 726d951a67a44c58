"""Draws device selectors in CEL, for Kubernetes' own library to evaluate; see README.md."""

from __future__ import annotations

import json
import random
import sys

MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB", "Tesla T4", "tesla t4", "T4")
UUIDS = ("GPU-1", "GPU-2", "GPU-3")
SIZES = ("81920Mi", "40Gi", "40960Mi", "15360Mi", "15Gi", "16G", "24576.5Mi", "80Gi", "1", "0",
         "-1", "1e12", "999Ei", "15360Mi1")  # fmt: skip
DEVICES = [
    {"productName": model, "uuid": uuid, "memory": memory}
    for model, uuid, memory in (
        ("NVIDIA A100-SXM4-80GB", "GPU-1", "81920Mi"),
        ("NVIDIA A100-SXM4-40GB", "GPU-2", "40960Mi"),
        ("NVIDIA A100-SXM4-40GB", "GPU-3", "20480Mi"),
        ("Tesla T4", "GPU-4", "15360Mi"),
        ("tesla t4", "GPU-5", "15259Mi"),
        ("T4", "GPU-6", "24577Mi"),
        ("NVIDIA", "GPU-1-2", "1Mi"),
    )
]
TOKENS = ("!", "(", ")", "&&", "||", "==", "!=", ">", "0", "1", "device", ".", '"T4"', "quantity",
          "compareTo", "[", "]", "true", "isLessThan", "in", ",")  # fmt: skip


class Draw:
    """Draws expressions.

    Args:
        seed: Two draws with the same seed are equal.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _one(self, *of):
        return self._random.choice(of)

    def text(self, value: str) -> str:
        quote = self._one('"', '"', "'")
        return f"{quote}{value}{quote}"

    def member(self, kind: str, name: str) -> str:
        domain = self.text("vgpu.dev")
        found = self._one(f".{name}", f".{name}", f"[{self.text(name)}]")
        return f"device.{kind}[{domain}]{found}"

    def attribute(self) -> str:
        name, values = self._one(("productName", MODELS), ("productName", MODELS), ("uuid", UUIDS))
        sign = self._one("==", "==", "!=", "in")
        if sign != "in":
            return f"{self.member('attributes', name)} {sign} {self.text(self._one(*values))}"
        chosen = self._random.sample(values, self._one(1, 2, 3))
        return f"{self.member('attributes', name)} in [{', '.join(map(self.text, chosen))}]"

    def amounts(self) -> str:
        memory, size = (
            self.member("capacity", "memory"),
            f"quantity({self.text(self._one(*SIZES))})",
        )
        left, right = self._one((memory, size), (memory, size), (size, memory))
        method = self._one("compareTo", "compareTo", "isGreaterThan", "isLessThan", "==", "!=")
        if method == "compareTo":
            sign = self._one("==", "!=", "<", "<=", ">", ">=")
            return f"{left}.compareTo({right}) {sign} {self._one('0', '0', '0', '1', '-1', '2')}"
        return f"{left} {method} {right}" if "=" in method else f"{left}.{method}({right})"

    def expression(self, depth: int) -> str:
        match self._one("attribute", "attribute", "amounts", "and", "or", "not", "class"):
            case "and" if depth:
                return f"{self.part(depth - 1)} && {self.part(depth - 1)}"
            case "or" if depth:
                return f"{self.part(depth - 1)}{self._one(' || ', '||')}{self.part(depth - 1)}"
            case "not" if depth:
                return f"!({self.expression(depth - 1)})"
            case "class":
                return self._one(
                    f"device.driver == {self.text('vgpu.dev')}",
                    f"{self.member('attributes', 'type')} == {self.text('hami-gpu')}",
                )
            case "amounts":
                return self.amounts()
        return self.attribute()

    def part(self, depth: int) -> str:
        found = self.expression(depth)
        return self._one(found, f"({found})", f"({found})", f"\n  {found} // why\n")

    def broken(self) -> str:
        """Return an expression with one token more, fewer or other."""
        tokens = self.expression(2).split(" ")
        at = self._random.randrange(len(tokens))
        tokens[at : at + self._one(0, 1)] = self._one([], [self._one(*TOKENS)])
        return " ".join(tokens)


def main() -> None:
    """Print the questions."""
    draw = Draw(20261127)
    found = dict.fromkeys(draw.expression(depth) for depth in (0, 1, 2, 3) for _ in range(120))
    found |= dict.fromkeys(draw.broken() for _ in range(200))
    questions = [{"expression": expression} for expression in found]
    json.dump({"devices": DEVICES, "questions": questions}, sys.stdout)


if __name__ == "__main__":
    main()
